//! Evaluates expressions.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;

use super::arguments::Arguments;
use super::ast::{Applied, Comparison, Const, Expr, Pair};
use super::attributes::{attribute, item, slice};
use super::filters;
use super::methods;
use super::refused::{Refused, Result};
use super::statements::Renderer;
use super::tests::test;
use super::value::{Dict, Function, Text, Value};

/// The longest range that Jinja2's sandbox makes.
const RANGE_MAX: i64 = 100_000;
/// The longest text or list that a multiplication makes.
const REPEATED_MAX: usize = 1 << 20;

impl<'a> Renderer<'a> {
    pub(super) fn eval(&mut self, expression: &'a Expr) -> Result<Value<'a>> {
        self.spend(1)?;
        match expression {
            Expr::TemplateData { data } => Ok(Value::text(data.as_str())),
            Expr::Const { value } => Ok(match value {
                Const::None(()) => Value::None,
                Const::Bool(value) => Value::Bool(*value),
                Const::Int(value) => Value::Int(*value),
                Const::Float(value) => Value::Float(*value),
                Const::Str(value) => Value::text(value.as_str()),
            }),
            Expr::Name { name } => self.load(name),
            Expr::Tuple { items } => Ok(Value::tuple(self.eval_all(items)?)),
            Expr::List { items } => Ok(Value::list(self.eval_all(items)?)),
            Expr::Dict { items } => self.dict(items),
            Expr::Conditional { test, expr1, expr2 } => {
                if self.eval(test)?.is_true()? {
                    self.eval(expr1)
                } else {
                    expr2
                        .as_ref()
                        .map_or(Ok(Value::Undefined), |other| self.eval(other))
                }
            }
            Expr::Getattr { node, attr } => attribute(&self.eval(node)?, attr),
            Expr::Getitem { node, arg } => {
                let base = self.eval(node)?;
                if let Expr::Slice { start, stop, step } = &**arg {
                    let mut bound = |given: &'a Option<Box<Expr>>| match given {
                        None => Ok(None),
                        Some(expression) => match self.eval(expression)? {
                            Value::None => Ok(None),
                            Value::Int(place) => Ok(Some(place)),
                            _ => Err(Refused::Unlike("slice")),
                        },
                    };
                    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?);
                    if let Ok(len) = base.len() {
                        self.spend(len / 64)?;
                    }
                    return slice(&base, start, stop, step);
                }
                let key = self.eval(arg)?;
                item(&base, &key)
            }
            Expr::Call {
                node,
                args,
                kwargs,
                dyn_args: None,
                dyn_kwargs: None,
            } => self.eval_call(node, args, kwargs),
            Expr::Filter(applied) => {
                let Some(node) = &applied.node else {
                    return Err(Refused::Unlike("filter without a value"));
                };
                let value = self.eval(node)?;
                self.filter(applied, value)
            }
            Expr::Test(applied) => {
                let Some(node) = &applied.node else {
                    return Err(Refused::Unlike("test without a value"));
                };
                let value = self.eval(node)?;
                let arguments = self.applied_arguments(applied)?;
                arguments.end(arguments.places.len())?;
                Ok(Value::Bool(test(&applied.name, &value, &arguments.places)?))
            }
            Expr::Concat { nodes } => {
                let mut text = String::new();
                for node in nodes {
                    self.eval(node)?.print(&mut text)?;
                }
                self.spend(text.len() / 64)?;
                Ok(Value::text(text))
            }
            Expr::Compare { expr, ops } => self.compare(expr, ops),
            Expr::And(Pair { left, right }) => {
                let value = self.eval(left)?;
                if value.is_true()? {
                    self.eval(right)
                } else {
                    Ok(value)
                }
            }
            Expr::Or(Pair { left, right }) => {
                let value = self.eval(left)?;
                if value.is_true()? {
                    Ok(value)
                } else {
                    self.eval(right)
                }
            }
            Expr::Not { node } => Ok(Value::Bool(!self.eval(node)?.is_true()?)),
            Expr::Neg { node } => match self.eval(node)? {
                Value::Int(value) => integer(value.checked_neg()),
                Value::Float(value) => Ok(Value::Float(-value)),
                _ => Err(Refused::Unlike("-")),
            },
            Expr::Pos { node } => match self.eval(node)? {
                value @ (Value::Int(_) | Value::Float(_)) => Ok(value),
                _ => Err(Refused::Unlike("+")),
            },
            Expr::Add(pair) => {
                let (left, right) = self.both(pair)?;
                self.add(&left, &right)
            }
            Expr::Sub(pair) => match self.both(pair)? {
                (Value::Int(a), Value::Int(b)) => integer(a.checked_sub(b)),
                (a, b) => Ok(Value::Float(a.float()? - b.float()?)),
            },
            Expr::Mul(pair) => {
                let (left, right) = self.both(pair)?;
                self.multiply(&left, &right)
            }
            Expr::Div(pair) => {
                let (left, right) = self.both(pair)?;
                let (a, b) = (left.float()?, right.float()?);
                if b == 0.0 {
                    return Err(Refused::Unlike("division by zero"));
                }
                Ok(Value::Float(a / b))
            }
            Expr::FloorDiv(pair) => match self.both(pair)? {
                (Value::Int(a), Value::Int(b)) if b > 0 => integer(a.checked_div_euclid(b)),
                _ => Err(Refused::Unlike("//")),
            },
            Expr::Mod(pair) => match self.both(pair)? {
                (Value::Int(a), Value::Int(b)) if b > 0 => integer(a.checked_rem_euclid(b)),
                _ => Err(Refused::Unlike("%")),
            },
            _ => Err(Refused::Unlike("expression")),
        }
    }

    fn eval_all(&mut self, items: &'a [Expr]) -> Result<Vec<Value<'a>>> {
        items.iter().map(|item| self.eval(item)).collect()
    }

    fn dict(&mut self, items: &'a [Expr]) -> Result<Value<'a>> {
        let mut dict = Dict::default();
        for pair in items {
            let Expr::Pair { key, value } = pair else {
                return Err(Refused::Unlike("dict"));
            };
            let Value::Str(key) = self.eval(key)? else {
                return Err(Refused::Unlike("key that is no string"));
            };
            let value = self.eval(value)?;
            dict.insert(key, value);
        }
        Ok(Value::dict(dict))
    }

    fn both(&mut self, pair: &'a Pair) -> Result<(Value<'a>, Value<'a>)> {
        Ok((self.eval(&pair.left)?, self.eval(&pair.right)?))
    }

    fn add(&mut self, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>> {
        match (left, right) {
            (Value::Str(a), Value::Str(b)) => {
                self.spend((a.len() + b.len()) / 64)?;
                let mut text = String::with_capacity(a.len() + b.len());
                text.push_str(a);
                text.push_str(b);
                Ok(Value::text(text))
            }
            (Value::Int(a), Value::Int(b)) => integer(a.checked_add(*b)),
            (Value::List(a), Value::List(b)) => {
                self.spend(a.len() + b.len())?;
                Ok(Value::list(a.iter().chain(b.iter()).cloned().collect()))
            }
            (Value::Tuple(a), Value::Tuple(b)) => {
                self.spend(a.len() + b.len())?;
                Ok(Value::tuple(a.iter().chain(b.iter()).cloned().collect()))
            }
            (a, b) => Ok(Value::Float(a.float()? + b.float()?)),
        }
    }

    fn multiply(&mut self, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>> {
        match (left, right) {
            (Value::Int(a), Value::Int(b)) => integer(a.checked_mul(*b)),
            (Value::Str(text), Value::Int(count)) | (Value::Int(count), Value::Str(text)) => {
                let count = usize::try_from(*count).unwrap_or(0);
                if text.len().saturating_mul(count) > REPEATED_MAX {
                    return Err(Refused::Unlike("repeated text"));
                }
                self.spend(text.len() * count / 64)?;
                Ok(Value::text(text.repeat(count)))
            }
            (a @ Value::Float(_), b) | (a, b @ Value::Float(_)) => {
                Ok(Value::Float(a.float()? * b.float()?))
            }
            _ => Err(Refused::Unlike("*")),
        }
    }

    fn compare(&mut self, first: &'a Expr, operands: &'a [Expr]) -> Result<Value<'a>> {
        let mut left = self.eval(first)?;
        for operand in operands {
            let Expr::Operand { op, expr } = operand else {
                return Err(Refused::Unlike("comparison"));
            };
            let right = self.eval(expr)?;
            if let (Comparison::In | Comparison::Notin, Ok(len)) = (op, right.len()) {
                self.spend(len / 64)?;
            }
            let holds = match op {
                Comparison::Eq => left.equals(&right)?,
                Comparison::Ne => !left.equals(&right)?,
                Comparison::Lt => left.order(&right)? == Ordering::Less,
                Comparison::Lteq => left.order(&right)? != Ordering::Greater,
                Comparison::Gt => left.order(&right)? == Ordering::Greater,
                Comparison::Gteq => left.order(&right)? != Ordering::Less,
                Comparison::In => right.contains(&left)?,
                Comparison::Notin => !right.contains(&left)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn eval_call(
        &mut self,
        callee: &'a Expr,
        places: &'a [Expr],
        names: &'a [Expr],
    ) -> Result<Value<'a>> {
        if let Expr::Getattr { node, attr } = callee {
            let base = self.eval(node)?;
            let arguments = self.arguments(places, names)?;
            if let Ok(len) = base.len() {
                self.spend(len / 64)?;
            }
            return methods::call(&base, attr, arguments);
        }
        let callee = self.eval(callee)?;
        let arguments = self.arguments(places, names)?;
        match callee {
            Value::Macro(macro_) => self.call(macro_, arguments.places, arguments.names),
            Value::Function(function) => self.call_function(function, arguments),
            _ => Err(Refused::Unlike("call")),
        }
    }

    fn call_function(
        &mut self,
        function: Function,
        mut arguments: Arguments<'a>,
    ) -> Result<Value<'a>> {
        match function {
            Function::Range => {
                let bounds = arguments
                    .places
                    .iter()
                    .map(|value| match value {
                        Value::Int(value) => Ok(*value),
                        _ => Err(Refused::Unlike("range")),
                    })
                    .collect::<Result<Vec<i64>>>()?;
                arguments.end(arguments.places.len())?;
                let (first, end, step) = match bounds[..] {
                    [end] => (0, end, 1),
                    [first, end] => (first, end, 1),
                    [first, end, step] if step != 0 => (first, end, step),
                    _ => return Err(Refused::Unlike("range")),
                };
                self.range(first, end, step)
            }
            Function::Dict | Function::Namespace => {
                let mut items = match arguments.take(0, "") {
                    None => Dict::default(),
                    Some(Value::Dict(items)) => (*items).clone(),
                    Some(_) => return Err(Refused::Unlike("dict")),
                };
                if arguments.places.len() > 1 {
                    return Err(Refused::Unlike("dict"));
                }
                for (name, value) in arguments.names {
                    items.insert(Text::Borrowed(name), value);
                }
                Ok(match function {
                    Function::Dict => Value::dict(items),
                    _ => Value::Namespace(Rc::new(RefCell::new(items))),
                })
            }
            Function::StrftimeNow => {
                let format = arguments.take(0, "text");
                arguments.end(1)?;
                let Some(Value::Str(format)) = format else {
                    return Err(Refused::Unlike("strftime"));
                };
                Ok(Value::text((self.now)().format(&format)?))
            }
            Function::RaiseException => Err(Refused::Unlike("the template raises")),
            Function::Other => Err(Refused::Unlike("function")),
        }
    }

    fn range(&mut self, first: i64, end: i64, step: i64) -> Result<Value<'a>> {
        let mut items = Vec::new();
        let mut next = first;
        while (step > 0 && next < end) || (step < 0 && next > end) {
            if items.len() as i64 >= RANGE_MAX {
                return Err(Refused::Unlike("range"));
            }
            items.push(Value::Int(next));
            let Some(after) = next.checked_add(step) else {
                break;
            };
            next = after;
        }
        self.spend(items.len())?;
        Ok(Value::view(items))
    }

    fn arguments(&mut self, places: &'a [Expr], names: &'a [Expr]) -> Result<Arguments<'a>> {
        let places = self.eval_all(places)?;
        let mut named = Vec::with_capacity(names.len());
        for keyword in names {
            let Expr::Keyword { key, value } = keyword else {
                return Err(Refused::Unlike("keyword"));
            };
            named.push((key.as_str(), self.eval(value)?));
        }
        Ok(Arguments {
            places,
            names: named,
        })
    }

    fn applied_arguments(&mut self, applied: &'a Applied) -> Result<Arguments<'a>> {
        if applied.dyn_args.is_some() || applied.dyn_kwargs.is_some() {
            return Err(Refused::Unlike("unpacked arguments"));
        }
        self.arguments(&applied.args, &applied.kwargs)
    }

    fn filter(&mut self, applied: &'a Applied, value: Value<'a>) -> Result<Value<'a>> {
        let arguments = self.applied_arguments(applied)?;
        if let Ok(len) = value.len() {
            self.spend(len / 64)?;
        }
        filters::apply(&applied.name, value, arguments)
    }

    /// `{% set x | filter %}`: a filter, or a chain of them, over a block's text.
    pub(super) fn filter_block(
        &mut self,
        expression: &'a Expr,
        text: Value<'a>,
    ) -> Result<Value<'a>> {
        let Expr::Filter(applied) = expression else {
            return Err(Refused::Unlike("filter"));
        };
        let value = match &applied.node {
            None => text,
            Some(inner) => self.filter_block(inner, text)?,
        };
        self.filter(applied, value)
    }
}

fn integer<'a>(value: Option<i64>) -> Result<Value<'a>> {
    value
        .map(Value::Int)
        .ok_or(Refused::Unlike("integer beyond 64 bits"))
}
