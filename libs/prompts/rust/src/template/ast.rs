//! A template's syntax tree, as Jinja2's own parser made it. An unknown node is an error of loading.

use serde::Deserialize;

/// A whole template.
#[derive(Debug, Deserialize)]
pub struct Template {
    pub body: Vec<Node>,
    /// Names that are undefined until the template sets them, also where the caller passes such a variable.
    pub unset: Vec<String>,
}

/// A statement.
#[derive(Debug, Deserialize)]
pub enum Node {
    Output {
        nodes: Vec<Expr>,
    },
    For(Box<For>),
    If(If),
    Macro(Macro),
    Assign {
        target: Expr,
        node: Expr,
    },
    AssignBlock {
        target: Expr,
        filter: Option<Expr>,
        body: Body,
    },
    With {
        targets: Vec<Expr>,
        values: Vec<Expr>,
        body: Body,
    },
    Break {},
    Continue {},
}

/// Statements that have a scope of their own.
#[derive(Debug, Deserialize)]
#[serde(from = "Vec<Node>")]
pub struct Body {
    pub nodes: Vec<Node>,
    /// Names that the statements set in this scope.
    pub stores: Vec<String>,
}

impl From<Vec<Node>> for Body {
    fn from(nodes: Vec<Node>) -> Self {
        let mut stores = Vec::new();
        collect_stores(&nodes, &mut stores);
        Self { nodes, stores }
    }
}

#[derive(Debug, Deserialize)]
pub struct For {
    pub target: Expr,
    pub iter: Expr,
    pub body: Body,
    pub else_: Body,
    pub test: Option<Expr>,
    pub recursive: bool,
}

#[derive(Debug, Deserialize)]
pub struct If {
    pub test: Expr,
    pub body: Vec<Node>,
    pub elif_: Vec<Node>,
    pub else_: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub struct Macro {
    pub name: String,
    pub args: Vec<Expr>,
    pub defaults: Vec<Expr>,
    pub body: Body,
}

/// An expression.
#[derive(Debug, Deserialize)]
pub enum Expr {
    TemplateData {
        data: String,
    },
    Name {
        name: String,
    },
    NSRef {
        name: String,
        attr: String,
    },
    Const {
        value: Const,
    },
    Tuple {
        items: Vec<Expr>,
    },
    List {
        items: Vec<Expr>,
    },
    Dict {
        items: Vec<Expr>,
    },
    Pair {
        key: Box<Expr>,
        value: Box<Expr>,
    },
    Keyword {
        key: String,
        value: Box<Expr>,
    },
    #[serde(rename = "CondExpr")]
    Conditional {
        test: Box<Expr>,
        expr1: Box<Expr>,
        expr2: Option<Box<Expr>>,
    },
    Filter(Applied),
    Test(Applied),
    Call {
        node: Box<Expr>,
        args: Vec<Expr>,
        kwargs: Vec<Expr>,
        dyn_args: Option<Box<Expr>>,
        dyn_kwargs: Option<Box<Expr>>,
    },
    Getitem {
        node: Box<Expr>,
        arg: Box<Expr>,
    },
    Getattr {
        node: Box<Expr>,
        attr: String,
    },
    Slice {
        start: Option<Box<Expr>>,
        stop: Option<Box<Expr>>,
        step: Option<Box<Expr>>,
    },
    Concat {
        nodes: Vec<Expr>,
    },
    Compare {
        expr: Box<Expr>,
        ops: Vec<Expr>,
    },
    Operand {
        op: Comparison,
        expr: Box<Expr>,
    },
    And(Pair),
    Or(Pair),
    Not {
        node: Box<Expr>,
    },
    Neg {
        node: Box<Expr>,
    },
    Pos {
        node: Box<Expr>,
    },
    Add(Pair),
    Sub(Pair),
    Mul(Pair),
    Div(Pair),
    FloorDiv(Pair),
    Mod(Pair),
}

/// A filter or a test with its arguments. A filter of a block has no node.
#[derive(Debug, Deserialize)]
pub struct Applied {
    pub node: Option<Box<Expr>>,
    pub name: String,
    pub args: Vec<Expr>,
    pub kwargs: Vec<Expr>,
    pub dyn_args: Option<Box<Expr>>,
    pub dyn_kwargs: Option<Box<Expr>>,
}

/// The two sides of an operator.
#[derive(Debug, Deserialize)]
pub struct Pair {
    pub left: Box<Expr>,
    pub right: Box<Expr>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Const {
    None(()),
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Comparison {
    Eq,
    Ne,
    Gt,
    Gteq,
    Lt,
    Lteq,
    In,
    Notin,
}

fn collect_stores(nodes: &[Node], stores: &mut Vec<String>) {
    for node in nodes {
        match node {
            Node::Assign { target, .. } | Node::AssignBlock { target, .. } => {
                collect_targets(target, stores);
            }
            Node::If(branch) => {
                for nodes in [&branch.body, &branch.elif_, &branch.else_] {
                    collect_stores(nodes, stores);
                }
            }
            Node::Macro(macro_) => stores.push(macro_.name.clone()),
            _ => {}
        }
    }
}

fn collect_targets(target: &Expr, stores: &mut Vec<String>) {
    match target {
        Expr::Name { name } => stores.push(name.clone()),
        Expr::Tuple { items } => items.iter().for_each(|item| collect_targets(item, stores)),
        _ => {}
    }
}
