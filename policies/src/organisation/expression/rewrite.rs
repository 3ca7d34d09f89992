//! Rewriting of a checked expression: it is metered, variables are read from their place, and reading a field does not copy
//! what is around it.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use cel::common::types::{CelInt, CelString};

use super::super::functions::{STEP, VARIABLE, WEIGH};
use super::{Expression, full_name, is_operator, variable_of};

/// The expression that the interpreter runs instead of `node`, which the check must have let through.
pub(super) fn rewrite(node: IdedExpr, variables: &[(String, Expression)]) -> IdedExpr {
    let mut rewriter = Rewriter {
        variables,
        locals: Vec::new(),
        parts: 0,
    };
    rewriter.node(node)
}

struct Rewriter<'a> {
    variables: &'a [(String, Expression)],
    locals: Vec<String>,
    parts: usize,
}

impl Rewriter<'_> {
    fn is_local(&self, name: &str) -> bool {
        self.locals.iter().any(|local| local == name)
    }

    fn node(&mut self, node: IdedExpr) -> IdedExpr {
        self.parts += 1;
        let id = node.id;
        let expr = match node.expr {
            Expr::Select(select) => {
                if variable_of(&select, |name| self.is_local(name)).is_some() {
                    return self.variable(&select.field);
                }
                let operand = self.node(*select.operand);
                if select.test {
                    Expr::Select(SelectExpr {
                        operand: Box::new(operand),
                        field: select.field,
                        test: true,
                    })
                } else {
                    call(operators::INDEX, vec![operand, text(&select.field)])
                }
            }
            Expr::Call(parts) => self.call(parts),
            Expr::Comprehension(parts) => self.comprehension(*parts),
            Expr::List(mut list) => {
                list.elements = list.elements.into_iter().map(|element| self.element(element)).collect();
                Expr::List(list)
            }
            Expr::Map(mut map) => {
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        entry.key = self.element(std::mem::take(&mut entry.key));
                        entry.value = self.element(std::mem::take(&mut entry.value));
                    }
                }
                Expr::Map(map)
            }
            same @ (Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified) => same,
        };
        IdedExpr { id, expr }
    }

    /// An entry of a list or map that is built: its size counts.
    fn element(&mut self, node: IdedExpr) -> IdedExpr {
        let constant = matches!(node.expr, Expr::Literal(_));
        let node = self.node(node);
        if constant { node } else { weighed(node) }
    }

    fn variable(&self, name: &str) -> IdedExpr {
        let at = self.variables.iter().position(|(known, _)| known == name);
        at.map_or_else(
            || literal(LiteralValue::Null),
            |at| IdedExpr {
                id: 0,
                expr: call(VARIABLE, vec![number(at)]),
            },
        )
    }

    fn nodes(&mut self, nodes: Vec<IdedExpr>) -> Vec<IdedExpr> {
        nodes.into_iter().map(|node| self.node(node)).collect()
    }

    fn call(&mut self, mut parts: CallExpr) -> Expr {
        match (parts.func_name.as_str(), parts.args.len()) {
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, 2) => {
                let args = self.nodes(parts.args);
                let operator = match parts.func_name.as_str() {
                    operators::OPT_SELECT => operators::OPT_INDEX,
                    name => name,
                };
                return call(operator, args);
            }
            (operators::ADD, 2) => {
                let sum = call(operators::ADD, self.nodes(parts.args));
                return weighed(IdedExpr { id: 0, expr: sum }).expr;
            }
            (name, _) if is_operator(name) => {
                parts.args = self.nodes(parts.args);
                return Expr::Call(parts);
            }
            _ => {}
        }
        if full_name(&parts, |name| self.is_local(name)).is_none() {
            parts.target = parts.target.map(|target| Box::new(self.node(*target)));
        }
        parts.args = self.nodes(parts.args);
        let value = IdedExpr {
            id: 0,
            expr: Expr::Call(parts),
        };
        weighed(value).expr
    }

    /// Every round of a loop is as many steps as it has parts.
    fn comprehension(&mut self, mut it: ComprehensionExpr) -> Expr {
        it.iter_range = self.node(it.iter_range);
        it.accu_init = self.node(it.accu_init);
        let before = self.locals.len();
        self.locals.push(it.iter_var.clone());
        self.locals.extend(it.iter_var2.clone());
        self.locals.push(it.accu_var.clone());
        let parts = self.parts;
        it.loop_step = self.node(it.loop_step);
        let condition = self.node(it.loop_cond);
        let weight = self.parts - parts;
        it.loop_cond = IdedExpr {
            id: 0,
            expr: call(STEP, vec![number(weight), condition]),
        };
        it.result = self.node(it.result);
        self.locals.truncate(before);
        Expr::Comprehension(Box::new(it))
    }
}

fn call(func_name: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: func_name.to_owned(),
        target: None,
        args,
    })
}

fn literal(value: LiteralValue) -> IdedExpr {
    IdedExpr {
        id: 0,
        expr: Expr::Literal(value),
    }
}

fn text(value: &str) -> IdedExpr {
    literal(LiteralValue::String(CelString::from(value)))
}

fn number(value: usize) -> IdedExpr {
    literal(LiteralValue::Int(CelInt::from(
        i64::try_from(value).unwrap_or(i64::MAX),
    )))
}

fn weighed(node: IdedExpr) -> IdedExpr {
    IdedExpr {
        id: 0,
        expr: call(WEIGH, vec![node]),
    }
}
