//! The functions that an expression may call: CEL's own, Kubernetes' libraries, and the few that must be ours because the
//! usual ones can build a result without bound, or count bytes where CEL counts characters.

use std::sync::{Arc, LazyLock};

use cel::extractors::{Arguments, This};
use cel::parser::Expression as Node;
use cel::{Context, ExecutionError, FunctionContext, Value};
use kube_cel::KubeCelExt;

use super::meter;

/// Called around the condition of every loop: `@step(weight, condition)`.
pub(crate) const STEP: &str = "@step";
/// Called around every value that is built: `@weigh(value)`.
pub(crate) const WEIGH: &str = "@weigh";
/// The value of a variable: `@variable(index)`.
pub(crate) const VARIABLE: &str = "@variable";

/// Longest text that `join` and `replace` make, in bytes.
const MAX_TEXT: usize = 65_536;
/// Largest compiled regular expression, in bytes.
const MAX_REGEX: usize = 256 * 1024;

/// Names, with the least and the largest number of arguments; the object of a method counts as one. The names of
/// namespaced functions hold the dot.
#[rustfmt::skip]
const KNOWN: &[(&str, usize, usize)] = &[
    // CEL
    ("size", 1, 1), ("contains", 2, 2), ("startsWith", 2, 2), ("endsWith", 2, 2), ("matches", 2, 2), ("string", 1, 1),
    ("bytes", 1, 1), ("double", 1, 1), ("int", 1, 1), ("uint", 1, 1), ("dyn", 1, 1), ("min", 1, 64), ("max", 1, 64),
    ("duration", 1, 1), ("timestamp", 1, 1), ("getFullYear", 1, 1), ("getMonth", 1, 1), ("getDayOfYear", 1, 1),
    ("getDayOfMonth", 1, 1), ("getDate", 1, 1), ("getDayOfWeek", 1, 1), ("getHours", 1, 1), ("getMinutes", 1, 1),
    ("getSeconds", 1, 1), ("getMilliseconds", 1, 1),
    // optional values
    ("optional.none", 0, 0), ("optional.of", 1, 1), ("optional.ofNonZeroValue", 1, 1), ("value", 1, 1), ("hasValue", 1, 1),
    ("or", 2, 2), ("orValue", 2, 2),
    // texts
    ("charAt", 2, 2), ("indexOf", 2, 3), ("lastIndexOf", 2, 3), ("join", 1, 2), ("lowerAscii", 1, 1), ("upperAscii", 1, 1),
    ("replace", 3, 4), ("split", 2, 3), ("substring", 2, 3), ("trim", 1, 1), ("reverse", 1, 1), ("strings.quote", 1, 1),
    // lists and sets
    ("isSorted", 1, 1), ("sum", 1, 1), ("slice", 3, 3), ("sort", 1, 1), ("flatten", 1, 2), ("distinct", 1, 1),
    ("first", 1, 1), ("last", 1, 1), ("sets.contains", 2, 2), ("sets.equivalent", 2, 2), ("sets.intersects", 2, 2),
    // numbers
    ("math.abs", 1, 1), ("math.ceil", 1, 1), ("math.floor", 1, 1), ("math.round", 1, 1), ("math.greatest", 1, 64),
    ("math.least", 1, 64), ("math.sign", 1, 1), ("math.trunc", 1, 1),
    // addresses and prefixes
    ("ip", 1, 1), ("isIP", 1, 1), ("ip.isCanonical", 1, 1), ("family", 1, 1), ("isLoopback", 1, 1), ("isUnspecified", 1, 1),
    ("isLinkLocalMulticast", 1, 1), ("isLinkLocalUnicast", 1, 1), ("isGlobalUnicast", 1, 1), ("cidr", 1, 1),
    ("isCIDR", 1, 1), ("containsIP", 2, 2), ("containsCIDR", 2, 2), ("prefixLength", 1, 1), ("masked", 1, 1),
    // URLs
    ("url", 1, 1), ("isURL", 1, 1), ("getScheme", 1, 1), ("getHost", 1, 1), ("getHostname", 1, 1), ("getPort", 1, 1),
    ("getEscapedPath", 1, 1), ("getQuery", 1, 1),
    // quantities
    ("quantity", 1, 1), ("isQuantity", 1, 1), ("isInteger", 1, 1), ("asInteger", 1, 1), ("asApproximateFloat", 1, 1),
    ("isGreaterThan", 2, 2), ("isLessThan", 2, 2), ("compareTo", 2, 2), ("add", 2, 2), ("sub", 2, 2),
];

/// Least and largest number of arguments of a function.
pub(crate) fn arity(name: &str) -> Option<(usize, usize)> {
    KNOWN
        .iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, least, most)| (*least, *most))
}

/// Names of all functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, ..)| *name)
}

/// The functions, without variables. One for the whole process: it is the parent of every evaluation's context.
pub(crate) fn root() -> &'static Context<'static> {
    static ROOT: LazyLock<Context<'static>> = LazyLock::new(|| {
        let mut context = Context::default().with_all();
        context.add_function("size", size);
        context.add_function("dyn", |value: Value| -> Result<Value, ExecutionError> { Ok(value) });
        context.add_function("matches", matches);
        context.add_function("join", join);
        context.add_function("replace", replace);
        context.add_function(STEP, in_steps);
        context.add_function(WEIGH, weighed);
        context.add_function(VARIABLE, variable);
        context
    });
    &ROOT
}

type Answer = Result<Value, ExecutionError>;

fn argument<'c>(context: &'c FunctionContext<'_, '_>, at: usize) -> Result<&'c Node, ExecutionError> {
    context
        .args
        .get(at)
        .ok_or_else(|| ExecutionError::invalid_argument_count(at + 1, context.args.len()))
}

fn in_steps(context: &FunctionContext<'_, '_>) -> Answer {
    let Value::Int(weight) = context.ptx.resolve(argument(context, 0)?)? else {
        return Err(context.error("no weight"));
    };
    meter::step(weight.unsigned_abs())?;
    context.ptx.resolve(argument(context, 1)?)
}

fn weighed(context: &FunctionContext<'_, '_>) -> Answer {
    meter::step(1)?;
    let value = context.ptx.resolve(argument(context, 0)?)?;
    meter::weigh(&value)?;
    Ok(value)
}

fn variable(context: &FunctionContext<'_, '_>) -> Answer {
    match context.ptx.resolve(argument(context, 0)?)? {
        Value::Int(at) => meter::variable(usize::try_from(at).unwrap_or(usize::MAX), context.ptx),
        _ => Err(context.error("no index")),
    }
}

fn size(context: &FunctionContext<'_, '_>, This(value): This<Value>) -> Answer {
    let size = match &value {
        Value::List(list) => list.len(),
        Value::Map(map) => map.map.len(),
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        other => return Err(context.error(format!("a {} has no size", other.type_of()))),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn matches(context: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, pattern: Arc<String>) -> Answer {
    match regex(&pattern) {
        Ok(regex) => Ok(Value::Bool(regex.is_match(&text))),
        Err(problem) => Err(context.error(problem)),
    }
}

/// A regular expression of bounded size.
pub(crate) fn regex(pattern: &str) -> Result<regex::Regex, String> {
    regex::RegexBuilder::new(pattern)
        .size_limit(MAX_REGEX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the regular expression is too large".to_owned(),
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                format!("not a regular expression: {}", last.trim_start_matches("error: "))
            }
        })
}

fn join(context: &FunctionContext<'_, '_>, This(list): This<Arc<Vec<Value>>>, Arguments(rest): Arguments) -> Answer {
    // As a function the list itself is the first argument.
    let separator = match rest.iter().find(|value| matches!(value, Value::String(_))) {
        Some(Value::String(separator)) => separator.as_str(),
        _ => "",
    };
    let mut texts = Vec::with_capacity(list.len());
    let mut length = separator.len().saturating_mul(list.len());
    for item in list.iter() {
        let Value::String(text) = item else {
            return Err(context.error(format!("a list of texts is needed, not of {}", item.type_of())));
        };
        length = length.saturating_add(text.len());
        texts.push(text.as_str());
    }
    if length > MAX_TEXT {
        return Err(context.error(format!("the text would be longer than {MAX_TEXT} bytes")));
    }
    Ok(Value::String(Arc::new(texts.join(separator))))
}

fn replace(context: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, Arguments(rest): Arguments) -> Answer {
    let texts: Vec<&str> = rest
        .iter()
        .filter_map(|value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    // As a function the text itself is the first argument.
    let [.., old, new] = texts.as_slice() else {
        return Err(context.error("the texts to replace and to put in its place are needed"));
    };
    let all = text.matches(*old).count();
    let count = match rest.last() {
        Some(Value::Int(most)) => usize::try_from(*most).unwrap_or(all).min(all),
        _ => all,
    };
    if text.len().saturating_add(new.len().saturating_mul(count)) > MAX_TEXT {
        return Err(context.error(format!("the text would be longer than {MAX_TEXT} bytes")));
    }
    Ok(Value::String(Arc::new(text.replacen(*old, new, count))))
}
