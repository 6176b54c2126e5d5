//! Runs a template's statements, with Jinja2's scopes.
//!
//! A loop's body, a macro, a `with` and a `set` block have scopes; an `if` has none. A name is looked up from the inside out,
//! then among the template's own names, the variables and the globals. Jinja2 decides that at compile time: a name that a
//! scope sets later is undefined in it before. Where that would differ from looking it up, it is refused.

use std::rc::Rc;

use super::ast::{self, Body, Expr, For, If, Macro, Node};
use super::clock::LocalTime;
use super::refused::{Budget, Refused, Result};
use super::value::{Dict, Function, Loop, Value};

/// The deepest recursion of macros.
const CALLS_MAX: usize = 40;

/// One rendering.
pub struct Renderer<'a> {
    template: &'a ast::Template,
    variables: Dict<'a>,
    scopes: Vec<Scope<'a>>,
    /// The first scope that the running macro sees, besides the template's own.
    base: usize,
    calls: usize,
    pub(super) out: String,
    steps_left: u64,
    pub(super) now: &'a dyn Fn() -> LocalTime,
}

struct Scope<'a> {
    values: Vec<(&'a str, Value<'a>)>,
    /// Names that its statements set at some time.
    stores: &'a [String],
}

/// How a list of statements ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'a> Renderer<'a> {
    pub fn new(
        template: &'a ast::Template,
        variables: Dict<'a>,
        budget: Budget,
        now: &'a dyn Fn() -> LocalTime,
    ) -> Self {
        Self {
            template,
            variables,
            scopes: Vec::new(),
            base: 0,
            calls: 0,
            out: String::new(),
            steps_left: budget.0,
            now,
        }
    }

    pub fn render(mut self) -> Result<String> {
        let values = self
            .template
            .unset
            .iter()
            .map(|name| (name.as_str(), Value::Undefined))
            .collect();
        self.scopes.push(Scope {
            values,
            stores: &[],
        });
        let template = self.template;
        self.run(&template.body)?;
        Ok(self.out)
    }

    /// Takes steps from the budget.
    pub(super) fn spend(&mut self, steps: usize) -> Result<()> {
        self.steps_left = self
            .steps_left
            .checked_sub(steps as u64)
            .ok_or(Refused::TooLong)?;
        Ok(())
    }

    /// The value of a name.
    pub(super) fn load(&self, name: &str) -> Result<Value<'a>> {
        let (root, inner) = self
            .scopes
            .split_first()
            .ok_or(Refused::Unlike("no scope"))?;
        let inner = &inner[self.base.saturating_sub(1).min(inner.len())..];
        for scope in inner.iter().rev().chain([root]) {
            if let Some((_, value)) = scope.values.iter().rev().find(|(known, _)| *known == name) {
                return Ok(value.clone());
            }
        }
        let found = match self.variables.get(name) {
            Some(value) => value.clone(),
            None => match name {
                "range" => Value::Function(Function::Range),
                "dict" => Value::Function(Function::Dict),
                "namespace" => Value::Function(Function::Namespace),
                "raise_exception" => Value::Function(Function::RaiseException),
                "strftime_now" => Value::Function(Function::StrftimeNow),
                "lipsum" | "cycler" | "joiner" => Value::Function(Function::Other),
                "loop" | "self" | "super" | "caller" | "varargs" | "kwargs" => {
                    return Err(Refused::Unlike("name with a meaning of its own"));
                }
                _ => return Ok(Value::Undefined),
            },
        };
        if inner
            .iter()
            .any(|scope| scope.stores.iter().any(|stored| stored == name))
        {
            return Err(Refused::Unlike("name set later"));
        }
        Ok(found)
    }

    fn store(&mut self, name: &'a str, value: Value<'a>) -> Result<()> {
        let scope = self.scopes.last_mut().ok_or(Refused::Unlike("no scope"))?;
        match scope.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => scope.values.push((name, value)),
        }
        Ok(())
    }

    fn run(&mut self, nodes: &'a [Node]) -> Result<Flow> {
        for node in nodes {
            self.spend(1)?;
            match node {
                Node::Output { nodes } => {
                    for expression in nodes {
                        self.output(expression)?;
                    }
                }
                Node::If(branch) => match self.branch(branch)? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                },
                Node::For(loop_) => self.run_loop(loop_)?,
                Node::Assign { target, node } => {
                    let value = self.eval(node)?;
                    self.assign(target, value)?;
                }
                Node::AssignBlock {
                    target,
                    filter,
                    body,
                } => {
                    let outside = std::mem::take(&mut self.out);
                    let flow = self.scoped(body, Vec::new())?;
                    let text = Value::text(std::mem::replace(&mut self.out, outside));
                    let value = match filter {
                        None => text,
                        Some(filter) => self.filter_block(filter, text)?,
                    };
                    next(flow)?;
                    self.assign(target, value)?;
                }
                Node::With {
                    targets,
                    values,
                    body,
                } => {
                    let mut given = Vec::with_capacity(targets.len());
                    for (target, value) in targets.iter().zip(values) {
                        let Expr::Name { name } = target else {
                            return Err(Refused::Unlike("with"));
                        };
                        given.push((name.as_str(), self.eval(value)?));
                    }
                    let flow = self.scoped(body, given)?;
                    next(flow)?;
                }
                Node::Macro(macro_) => {
                    if self.scopes.len() != 1 {
                        return Err(Refused::Unlike("macro inside a scope"));
                    }
                    self.store(&macro_.name, Value::Macro(macro_))?;
                }
                Node::Break {} => return Ok(Flow::Break),
                Node::Continue {} => return Ok(Flow::Continue),
            }
        }
        Ok(Flow::Next)
    }

    fn output(&mut self, expression: &'a Expr) -> Result<()> {
        if let Expr::TemplateData { data } = expression {
            self.spend(1)?;
            self.out.push_str(data);
            return Ok(());
        }
        let value = self.eval(expression)?;
        let before = self.out.len();
        value.print(&mut self.out)?;
        self.spend((self.out.len() - before) / 64)
    }

    fn branch(&mut self, branch: &'a If) -> Result<Flow> {
        if self.eval(&branch.test)?.is_true()? {
            return self.run(&branch.body);
        }
        for node in &branch.elif_ {
            let Node::If(other) = node else {
                return Err(Refused::Unlike("elif"));
            };
            if self.eval(&other.test)?.is_true()? {
                return self.run(&other.body);
            }
        }
        self.run(&branch.else_)
    }

    fn run_loop(&mut self, loop_: &'a For) -> Result<()> {
        if loop_.recursive {
            return Err(Refused::Unlike("recursive loop"));
        }
        let mut items = self.eval(&loop_.iter)?.items()?;
        if let Some(test) = &loop_.test {
            let mut kept = Vec::new();
            for item in items.iter() {
                self.spend(1)?;
                let given = targets(&loop_.target, item)?;
                self.scopes.push(Scope {
                    values: given,
                    stores: &[],
                });
                let is_kept = self.eval(test).and_then(|value| value.is_true());
                self.scopes.pop();
                if is_kept? {
                    kept.push(item.clone());
                }
            }
            items = Rc::new(kept);
        }
        // Jinja2 counts recursion, which is refused above.
        let depth = 1;
        for (place, item) in items.iter().enumerate() {
            self.spend(1)?;
            let mut given = targets(&loop_.target, item)?;
            let state = Loop {
                items: Rc::clone(&items),
                place,
                depth,
            };
            given.push(("loop", Value::Loop(Rc::new(state))));
            if self.scoped(&loop_.body, given)? == Flow::Break {
                break;
            }
        }
        if items.is_empty() && !loop_.else_.nodes.is_empty() {
            let flow = self.scoped(&loop_.else_, Vec::new())?;
            next(flow)?;
        }
        Ok(())
    }

    fn scoped(&mut self, body: &'a Body, values: Vec<(&'a str, Value<'a>)>) -> Result<Flow> {
        self.scopes.push(Scope {
            values,
            stores: &body.stores,
        });
        let flow = self.run(&body.nodes);
        self.scopes.pop();
        flow
    }

    fn assign(&mut self, target: &'a Expr, value: Value<'a>) -> Result<()> {
        match target {
            Expr::Name { name } => self.store(name, value),
            Expr::Tuple { .. } => {
                for (name, value) in targets(target, &value)? {
                    self.store(name, value)?;
                }
                Ok(())
            }
            Expr::NSRef { name, attr } => {
                let Value::Namespace(items) = self.load(name)? else {
                    return Err(Refused::Unlike("no namespace"));
                };
                if matches!(value, Value::Namespace(_)) {
                    return Err(Refused::Unlike("namespace in a namespace"));
                }
                items.borrow_mut().insert(attr.as_str().into(), value);
                Ok(())
            }
            _ => Err(Refused::Unlike("target")),
        }
    }

    /// Calls a macro.
    pub(super) fn call(
        &mut self,
        macro_: &'a Macro,
        arguments: Vec<Value<'a>>,
        keywords: Vec<(&'a str, Value<'a>)>,
    ) -> Result<Value<'a>> {
        if arguments.len() > macro_.args.len() || self.calls == CALLS_MAX {
            return Err(Refused::Unlike("macro call"));
        }
        let mut names = Vec::with_capacity(macro_.args.len());
        for argument in &macro_.args {
            let Expr::Name { name } = argument else {
                return Err(Refused::Unlike("macro"));
            };
            names.push(name.as_str());
        }
        let mut given: Vec<Option<Value<'a>>> = arguments.into_iter().map(Some).collect();
        given.resize_with(names.len(), || None);
        for (key, value) in keywords {
            let place = names
                .iter()
                .position(|name| *name == key)
                .filter(|place| given[*place].is_none())
                .ok_or(Refused::Unlike("macro argument"))?;
            given[place] = Some(value);
        }
        let outside = (self.base, std::mem::take(&mut self.out));
        self.base = self.scopes.len();
        self.calls += 1;
        self.scopes.push(Scope {
            values: Vec::with_capacity(names.len()),
            stores: &macro_.body.stores,
        });
        let done = self.call_body(macro_, &names, given);
        self.scopes.pop();
        self.calls -= 1;
        self.base = outside.0;
        let text = std::mem::replace(&mut self.out, outside.1);
        next(done?)?;
        Ok(Value::text(text))
    }

    fn call_body(
        &mut self,
        macro_: &'a Macro,
        names: &[&'a str],
        given: Vec<Option<Value<'a>>>,
    ) -> Result<Flow> {
        let first_default = names.len() - macro_.defaults.len();
        for (place, (name, value)) in names.iter().zip(given).enumerate() {
            let value = match value {
                Some(value) => value,
                None if place >= first_default => {
                    self.eval(&macro_.defaults[place - first_default])?
                }
                None => Value::Undefined,
            };
            self.store(name, value)?;
        }
        self.run(&macro_.body.nodes)
    }
}

/// Jinja2's loop controls end the loop around a block; here they would end the block.
fn next(flow: Flow) -> Result<()> {
    match flow {
        Flow::Next => Ok(()),
        Flow::Break | Flow::Continue => Err(Refused::Unlike("loop control in a block")),
    }
}

/// The names of a target with their values.
fn targets<'a>(target: &'a Expr, value: &Value<'a>) -> Result<Vec<(&'a str, Value<'a>)>> {
    match target {
        Expr::Name { name } => Ok(vec![(name.as_str(), value.clone())]),
        Expr::Tuple { items } => {
            let (Value::List(values) | Value::Tuple(values)) = value else {
                return Err(Refused::Unlike("unpacking"));
            };
            if values.len() != items.len() {
                return Err(Refused::Unlike("unpacking"));
            }
            items
                .iter()
                .zip(values.iter())
                .map(|(item, value)| match item {
                    Expr::Name { name } => Ok((name.as_str(), value.clone())),
                    _ => Err(Refused::Unlike("target")),
                })
                .collect()
        }
        _ => Err(Refused::Unlike("target")),
    }
}
