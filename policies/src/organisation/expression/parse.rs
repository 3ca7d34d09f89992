//! A source becomes a tree of bounded depth.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::parser::Parser;

use super::Fault;

/// Deepest nesting: every level is some stack of the interpreter.
const MAX_DEPTH: usize = 48;

/// Runs the parser with a stack of its own: it recurses for every operator of a chain.
pub(super) fn parse(source: &str) -> Result<IdedExpr, Vec<Fault>> {
    const STACK: usize = 64 << 20;
    let unreadable = |message: &str| {
        vec![Fault {
            position: None,
            message: message.to_owned(),
        }]
    };
    let parsed = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, || {
                let parsed = Parser::new().enable_optional_syntax(true).parse(source);
                // Both results are freed here too, and only a tree of bounded depth gets out.
                match parsed {
                    Ok(node) if depth_exceeds(&node, MAX_DEPTH) => Err(vec![Fault {
                        position: None,
                        message: format!("is nested deeper than {MAX_DEPTH} levels: use variables"),
                    }]),
                    Ok(node) => Ok(node),
                    Err(errors) => Err(errors
                        .errors
                        .iter()
                        .map(|error| {
                            let number = |n: isize| usize::try_from(n).ok().filter(|n| *n > 0);
                            Fault {
                                position: number(error.pos.0).zip(number(error.pos.1)),
                                message: plain(&error.msg),
                            }
                        })
                        .collect()),
                }
            })
            .map(std::thread::ScopedJoinHandle::join)
    });
    match parsed {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(unreadable("cannot be read: the parser failed on it")),
        Err(error) => Err(unreadable(&format!(
            "cannot be read now: no thread for the parser ({error})"
        ))),
    }
}

/// A parser's message on one line.
fn plain(message: &str) -> String {
    let message = message.lines().next().unwrap_or("cannot be read").trim();
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    // The parser lists every token that it could have gone on with.
    let message = message.split(" expecting ").next().unwrap_or(message);
    if message.contains("'<EOF>'") {
        return "ends too early".to_owned();
    }
    message.to_owned()
}

fn depth_exceeds(node: &IdedExpr, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else { return true };
    let deep = |node: &IdedExpr| depth_exceeds(node, left);
    match &node.expr {
        Expr::Call(call) => call.target.as_deref().is_some_and(deep) || call.args.iter().any(deep),
        Expr::Comprehension(c) => [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
            .into_iter()
            .any(deep),
        Expr::List(list) => list.elements.iter().any(deep),
        Expr::Map(map) => map.entries.iter().any(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => deep(&entry.key) || deep(&entry.value),
            EntryExpr::StructField(field) => deep(&field.value),
        }),
        Expr::Select(select) => deep(&select.operand),
        Expr::Struct(message) => message.entries.iter().any(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => deep(&entry.key) || deep(&entry.value),
            EntryExpr::StructField(field) => deep(&field.value),
        }),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => false,
    }
}
