//! One expression: parsed, checked for what the interpreter would only find when it runs (or never), and rewritten so that
//! it is metered.
//!
//! The rewriting also makes up for three differences between the interpreter and CEL: a field of something that has no
//! fields is an error and not `false`, `a.?b` is nothing and not an error where `b` is missing, and reading a field does not
//! copy what is around it.

mod check;
mod parse;
mod place;
mod rewrite;
mod words;

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use cel::{Context, ExecutionError, Value};
use tailnet_crds::Kind;
use tailnet_crds::structural::Step;

use super::functions;
use super::scope::Name;
use check::check;
use parse::parse;
use rewrite::rewrite;

pub(crate) use place::path_text;

/// A compiled expression.
#[derive(Debug, Clone)]
pub(crate) struct Expression {
    node: IdedExpr,
    /// Which names it uses, by itself and by its variables.
    pub(crate) uses: BTreeSet<Name>,
    /// Paths of the object that it reads, in their order, by itself and by its variables.
    pub(crate) reads: Vec<Vec<Step>>,
    /// Whether it asks for who asks.
    pub(crate) asks_for_user: bool,
}

impl Expression {
    /// Its value in a context with all names. To be called inside [`super::meter::metered`].
    pub(crate) fn value(&self, context: &Context<'_>) -> Result<Value, ExecutionError> {
        Value::resolve(&self.node, context)
    }
}

/// What an expression may refer to.
pub(crate) struct Surroundings<'a> {
    /// The kinds that it can be asked about.
    pub(crate) kinds: &'a [Kind],
    /// The variables that stand before it.
    pub(crate) variables: &'a [(String, Expression)],
}

/// What is wrong with an expression, with line and column where they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) position: Option<(usize, usize)>,
    pub(crate) message: String,
}

/// Whether an expression must give true or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Boolean,
    Text,
    Anything,
}

/// Compiles an expression.
pub(crate) fn compile(source: &str, around: &Surroundings<'_>, wanted: Wanted) -> Result<Expression, Vec<Fault>> {
    if source.trim().is_empty() {
        return Err(vec![Fault {
            position: None,
            message: "is empty".to_owned(),
        }]);
    }
    if source.chars().count() > super::MAX_EXPRESSION_CHARS {
        return Err(vec![Fault {
            position: None,
            message: format!(
                "has more than {} characters: split it, or use variables",
                super::MAX_EXPRESSION_CHARS
            ),
        }]);
    }
    let node = parse(source)?;
    let mut checked = check(source, &node, around);
    if checked.faults.is_empty()
        && let Some(found) = result_of(&node)
        && !wanted.takes(found)
    {
        checked.faults.push(Fault {
            position: None,
            message: format!("gives {found}, and {} is needed", wanted.words()),
        });
    }
    if !checked.faults.is_empty() {
        return Err(checked.faults);
    }
    Ok(Expression {
        node: rewrite(node, around.variables),
        uses: checked.uses,
        reads: checked.reads,
        asks_for_user: checked.asks_for_user,
    })
}

impl Wanted {
    fn takes(self, found: &str) -> bool {
        match self {
            Self::Boolean => false,
            Self::Text => found == "a text",
            Self::Anything => true,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Text => "a text",
            Self::Anything => "a value",
        }
    }
}

/// What an expression gives, where that is plain and is no boolean.
fn result_of(node: &IdedExpr) -> Option<&'static str> {
    match &node.expr {
        Expr::List(_) => Some("a list"),
        Expr::Map(_) => Some("a map"),
        Expr::Literal(LiteralValue::Boolean(_)) => None,
        Expr::Literal(LiteralValue::String(_)) => Some("a text"),
        Expr::Literal(_) => Some("a constant"),
        Expr::Call(call) => match call.func_name.as_str() {
            operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO | operators::NEGATE => {
                Some("a number")
            }
            "size" | "int" | "uint" | "double" | "prefixLength" => Some("a number"),
            "join" | "lowerAscii" | "upperAscii" | "trim" | "replace" | "string" => Some("a text"),
            _ => None,
        },
        _ => None,
    }
}

/// The name behind `variables.NAME`, unless a loop has a variable of that name.
fn variable_of(select: &SelectExpr, is_local: impl Fn(&str) -> bool) -> Option<&str> {
    match &select.operand.expr {
        Expr::Ident(name) if name == "variables" && !is_local(name) => Some(&select.field),
        _ => None,
    }
}

/// The name of a function such as `sets.contains`, whose target is no value but the first half of the name.
fn full_name(call: &CallExpr, is_local: impl Fn(&str) -> bool) -> Option<String> {
    let full = match &call.target.as_deref()?.expr {
        Expr::Ident(prefix) if !is_local(prefix) => format!("{prefix}.{}", call.func_name),
        _ => return None,
    };
    functions::arity(&full).map(|_| full)
}

fn is_operator(name: &str) -> bool {
    name.starts_with('_') || name.starts_with('@') || name == operators::LOGICAL_NOT || name == operators::NEGATE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(source: &str) -> Vec<String> {
        let around = Surroundings {
            kinds: &[Kind::TailnetSite, Kind::TailnetEgress],
            variables: &[],
        };
        match compile(source, &around, Wanted::Boolean) {
            Ok(_) => Vec::new(),
            Err(faults) => faults
                .into_iter()
                .map(|fault| match fault.position {
                    Some((line, column)) => format!("{line}:{column} {}", fault.message),
                    None => fault.message,
                })
                .collect(),
        }
    }

    #[test]
    fn what_would_fail_only_when_it_runs_is_found_before() {
        let said = |source: &str, words: &str| {
            let faults = faults(source);
            assert_eq!(faults.len(), 1, "{source}: {faults:?}");
            assert!(faults[0].contains(words), "{source}: {faults:?}");
        };
        said(
            "objct.spec.owner == 'a'",
            "1:1 \"objct\" is not known: did you mean object?",
        );
        said(
            "true &&\n object.spec.ownr == 'a'",
            "2:14 object.spec has no field \"ownr\": did you mean owner?",
        );
        said(
            "object.spec.targets.all(t, t.prot == 22)",
            "object.spec.targets[] has no field \"prot\"",
        );
        said(
            "object.spec.owner.startWith('a')",
            "there is no function \"startWith\": did you mean startsWith?",
        );
        said(
            "object.spec.owner.startsWith()",
            "takes 2 arguments (the object before the dot counts), not 1",
        );
        said("variables.x == 1", "there is no variable \"x\"");
        said("object.status == null", "object has no field \"status\"");
        said("tailnet.spec.nam == ''", "tailnet.spec has no field \"nam\"");
        said("object.spec.owner.matches('[a')", "not a regular expression");
        said("object.spec.targets.all(object, true)", "the name is taken");
        said("'text'", "gives a text, and true or false is needed");
        said("object.spec.prefixes.size()", "gives a number");
        said("A{b: 1} == 1", "messages such as Type{…}");
        said("object.metadata[?'labels'] == null", "an optional value");
        said("object.metadata.?labels.a != 'x'", "an optional value");
        said("", "is empty");
        assert!(
            faults("object.spec.owner ==")
                .iter()
                .all(|fault| fault.starts_with("1:")),
            "{:?}",
            faults("object.spec.owner ==")
        );
    }

    #[test]
    fn what_is_right_is_let_through() {
        for source in [
            "has(object.spec.owner) && object.spec.owner in ['a', 'b']",
            "object.spec.targets.all(t, t.port != 22 || (has(t.aliases) && t.aliases.exists(a, a.endsWith('.example'))))",
            "object.metadata[?'labels'][?'a'].orValue('') == 'x'",
            "object.metadata.?labels.?a.hasValue()",
            "object.spec.prefixes.all(p, cidr('10.0.0.0/8').containsCIDR(p))",
            "sets.contains(['a'], object.spec.consumerNamespaces)",
            "size(others) < 100 && others.all(o, o.spec.prefixes != object.spec.prefixes)",
            "request.operation == 'CREATE' || oldObject.spec.tag == object.spec.tag",
            "namespaceObject == null || namespaceObject.metadata.labels['a'] == 'b'",
        ] {
            assert_eq!(faults(source), Vec::<String>::new(), "{source}");
        }
    }

    #[test]
    fn what_is_read_and_used_is_known() {
        let around = Surroundings {
            kinds: Kind::ALL.as_slice(),
            variables: &[],
        };
        let source = "object.spec.targets.all(t, t.port > 1) && object.metadata.name != request.userInfo.username";
        let expression = compile(source, &around, Wanted::Boolean).unwrap();
        let reads: Vec<String> = expression.reads.iter().map(|path| path_text(path, ".")).collect();
        assert_eq!(reads, [".spec.targets", ".metadata.name"]);
        assert!(expression.asks_for_user);
        assert!(expression.uses.contains(&Name::Request));
    }

    #[test]
    fn size_and_depth_are_bounded_and_the_parser_survives() {
        let deep = format!("{}true{}", "(".repeat(1500), ")".repeat(1500));
        assert!(!faults(&deep).is_empty());
        let chain = vec!["1"; 1500].join("+");
        assert!(
            faults(&format!("{chain} == 1"))
                .iter()
                .any(|fault| fault.contains("nested deeper")),
            "{:?}",
            faults(&chain)
        );
        let nots = format!("{}true", "!".repeat(3000));
        assert!(faults(&nots).len() <= 1);
        let long = format!("'{}' == ''", "x".repeat(5000));
        assert!(faults(&long)[0].contains("more than"), "{:?}", faults(&long));
        let ors = vec!["object.spec.owner == 'a'"; 100].join(" || ");
        assert_eq!(faults(&ors), Vec::<String>::new(), "a balanced chain of || is fine");
    }
}
