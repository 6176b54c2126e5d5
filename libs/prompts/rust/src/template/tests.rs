//! Jinja2's tests: `x is defined` and so on.

use std::cmp::Ordering;

use super::refused::{Refused, Result};
use super::value::Value;

/// `value is name(arguments)`.
pub fn test<'a>(name: &str, value: &Value<'a>, arguments: &[Value<'a>]) -> Result<bool> {
    match (name, arguments) {
        ("defined", []) => Ok(!matches!(value, Value::Undefined)),
        ("undefined", []) => Ok(matches!(value, Value::Undefined)),
        ("none", []) => Ok(matches!(value, Value::None)),
        ("string", []) => Ok(matches!(value, Value::Str(_))),
        ("boolean", []) => Ok(matches!(value, Value::Bool(_))),
        ("true", []) => Ok(matches!(value, Value::Bool(true))),
        ("false", []) => Ok(matches!(value, Value::Bool(false))),
        ("integer", []) => Ok(matches!(value, Value::Int(_))),
        ("float", []) => Ok(matches!(value, Value::Float(_))),
        ("number", []) => Ok(matches!(
            value,
            Value::Int(_) | Value::Float(_) | Value::Bool(_)
        )),
        ("mapping", []) => {
            plain(value)?;
            Ok(matches!(value, Value::Dict(_)))
        }
        // Jinja2's `Undefined` has a length and can be iterated.
        ("sequence" | "iterable", []) => {
            plain(value)?;
            Ok(matches!(
                value,
                Value::Undefined
                    | Value::Str(_)
                    | Value::List(_)
                    | Value::Tuple(_)
                    | Value::Dict(_)
            ))
        }
        ("callable", []) => {
            // `Undefined` has a `__call__`, which raises.
            Ok(matches!(
                value,
                Value::Undefined | Value::Function(_) | Value::Macro(_)
            ))
        }
        ("odd", []) => Ok(integer(value)?.rem_euclid(2) == 1),
        ("even", []) => Ok(integer(value)?.rem_euclid(2) == 0),
        ("divisibleby", [by]) => match integer(by)? {
            0 => Err(Refused::Unlike("division by zero")),
            by => Ok(integer(value)?.wrapping_rem(by) == 0),
        },
        ("eq" | "equalto" | "==", [other]) => value.equals(other),
        ("ne" | "!=", [other]) => Ok(!value.equals(other)?),
        ("lt" | "lessthan" | "<", [other]) => Ok(value.order(other)? == Ordering::Less),
        ("le" | "<=", [other]) => Ok(value.order(other)? != Ordering::Greater),
        ("gt" | "greaterthan" | ">", [other]) => Ok(value.order(other)? == Ordering::Greater),
        ("ge" | ">=", [other]) => Ok(value.order(other)? != Ordering::Less),
        ("in", [container]) => container.contains(value),
        _ => Err(Refused::Unlike("test")),
    }
}

fn plain(value: &Value<'_>) -> Result<()> {
    match value {
        Value::View(_)
        | Value::Stream(_)
        | Value::Namespace(_)
        | Value::Loop(_)
        | Value::Macro(_)
        | Value::Function(_) => Err(Refused::Unlike("test of an object")),
        _ => Ok(()),
    }
}

fn integer(value: &Value<'_>) -> Result<i64> {
    match value {
        Value::Int(value) => Ok(*value),
        _ => Err(Refused::Unlike("not an integer")),
    }
}
