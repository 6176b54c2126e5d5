//! Renders a chat template exactly as Jinja2 does, or refuses.
//!
//! Jinja2's own parser reads the template, in Python at start; this module runs the syntax tree. Other engines in Rust were
//! no choice: they print floats in another way, iterate where Python raises, or find a key where Python finds a method, and
//! none of this shows as an error. Here every operation is Python's or a [`Refused`], and then Python renders.
//!
//! Bounds: a budget of steps ([`Budget`]), so that a nested loop over many messages ends.

mod arguments;
mod ast;
mod attributes;
mod clock;
mod expressions;
mod filters;
mod json;
mod methods;
mod refused;
mod statements;
mod tests;
mod value;

pub use clock::LocalTime;
pub use refused::{Budget, Refused, Result};
pub use value::{Dict, Text, Value};

use statements::Renderer;

/// A compiled template.
#[derive(Debug)]
pub struct Template(ast::Template);

impl Template {
    /// Reads a syntax tree, as JSON.
    ///
    /// # Errors
    /// It holds a statement that this module does not know.
    pub fn load(tree: &[u8]) -> std::result::Result<Self, serde_json::Error> {
        serde_json::from_slice(tree).map(Self)
    }

    /// Renders with these variables; `now` is what `strftime_now` prints.
    ///
    /// # Errors
    /// The template raises, or does what is not certain to be as in Python.
    pub fn render<'a>(
        &'a self,
        variables: Dict<'a>,
        budget: Budget,
        now: &'a dyn Fn() -> LocalTime,
    ) -> Result<String> {
        Renderer::new(&self.0, variables, budget, now).render()
    }
}
