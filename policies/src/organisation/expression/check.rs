//! Checking of an expression for what the interpreter would only find when it runs, or never; and what it reads.

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use tailnet_crds::structural::Step;

use super::super::functions;
use super::super::scope::Name;
use super::place::Place;
use super::words::{find, nearest};
use super::{Fault, Surroundings, full_name, is_operator, variable_of};

/// Most parts of one expression, nested ones included.
const MAX_PARTS: usize = 3_000;

/// What was found.
pub(super) struct Checked {
    pub(super) faults: Vec<Fault>,
    /// Which names it uses, by itself and by its variables.
    pub(super) uses: BTreeSet<Name>,
    /// Paths of the object that it reads, in their order, by itself and by its variables.
    pub(super) reads: Vec<Vec<Step>>,
    /// Whether it asks for who asks.
    pub(super) asks_for_user: bool,
}

/// Checks `node`, which `source` was parsed into.
pub(super) fn check(source: &str, node: &IdedExpr, around: &Surroundings<'_>) -> Checked {
    let mut checker = Checker {
        source,
        around,
        locals: Vec::new(),
        parts: 0,
        found: Checked {
            faults: Vec::new(),
            uses: BTreeSet::new(),
            reads: Vec::new(),
            asks_for_user: false,
        },
    };
    checker.walk(node, true);
    checker.found
}

struct Checker<'a> {
    source: &'a str,
    around: &'a Surroundings<'a>,
    locals: Vec<(String, Option<Place>)>,
    parts: usize,
    found: Checked,
}

impl Checker<'_> {
    fn fault(&mut self, token: Option<&str>, message: impl Into<String>) {
        let message = message.into();
        let position = token.and_then(|token| find(self.source, token));
        let fault = Fault { position, message };
        if !self.found.faults.contains(&fault) {
            self.found.faults.push(fault);
        }
    }

    /// Where its value comes from, where that is known. `whole` says that the value itself is used, and not only something
    /// inside it.
    fn walk(&mut self, node: &IdedExpr, whole: bool) -> Option<Place> {
        self.parts += 1;
        if self.parts == MAX_PARTS + 1 {
            self.fault(None, format!("has more than {MAX_PARTS} parts: split it"));
        }
        let place = match &node.expr {
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => {
                if let Some(variable) = variable_of(select, |name| self.local(name).is_some()) {
                    self.variable(variable);
                    return None;
                }
                let place = self.walk(&select.operand, false);
                let place = place.map(|place| place.field(&select.field));
                self.known(place, &select.field)
            }
            Expr::Call(parts) => self.call(parts),
            Expr::Comprehension(parts) => {
                self.comprehension(parts);
                None
            }
            Expr::List(list) => {
                self.all(&list.elements);
                None
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.walk(&entry.key, true);
                        self.walk(&entry.value, true);
                    }
                }
                None
            }
            Expr::Struct(message) => {
                self.fault(
                    Some(&message.type_name),
                    "messages such as Type{…} are not known here: write a map, {'key': value}",
                );
                None
            }
            Expr::Unspecified => {
                self.fault(None, "cannot be read");
                None
            }
            Expr::Literal(_) => None,
        };
        if whole && let Some(place) = &place {
            self.read(place);
        }
        place
    }

    fn all(&mut self, nodes: &[IdedExpr]) {
        for node in nodes {
            self.walk(node, true);
        }
    }

    fn local(&self, name: &str) -> Option<&Option<Place>> {
        self.locals
            .iter()
            .rev()
            .find(|(local, _)| local == name)
            .map(|(_, place)| place)
    }

    fn ident(&mut self, name: &str) -> Option<Place> {
        if let Some(place) = self.local(name) {
            return place.clone();
        }
        if let Some(root) = Name::parse(name) {
            self.found.uses.insert(root);
            let path = Vec::new();
            return Some(Place { root, path });
        }
        let message = match name {
            "variables" => "variables are read by their names, as variables.NAME".to_owned(),
            "self" | "oldSelf" => "policies speak of object and oldObject".to_owned(),
            "params" | "authorizer" => format!("{name} of Kubernetes' policies is not known here"),
            _ => {
                let names = Name::ALL.map(Name::as_str);
                let hint = nearest(name, names).map_or_else(String::new, |near| format!(": did you mean {near}?"));
                format!("{name:?} is not known{hint}")
            }
        };
        self.fault(Some(name), message);
        None
    }

    fn variable(&mut self, name: &str) {
        let Some((_, variable)) = self.around.variables.iter().find(|(known, _)| known == name) else {
            let known = self.around.variables.iter().map(|(name, _)| name.as_str());
            let hint = nearest(name, known).map_or_else(
                || ": a variable is known to what stands after it".to_owned(),
                |near| format!(": did you mean {near}?"),
            );
            self.fault(Some(name), format!("there is no variable {name:?}{hint}"));
            return;
        };
        self.found.uses.extend(variable.uses.iter().copied());
        self.found.asks_for_user |= variable.asks_for_user;
        for path in &variable.reads {
            if !self.found.reads.contains(path) {
                self.found.reads.push(path.clone());
            }
        }
    }

    fn call(&mut self, parts: &CallExpr) -> Option<Place> {
        let name = parts.func_name.as_str();
        if let (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, [operand, key]) =
            (name, &parts.args[..])
        {
            return self.index(operand, key);
        }
        if is_operator(name) {
            // The interpreter finds two optional values never equal, and compares one with nothing.
            let compares = !matches!(
                name,
                operators::LOGICAL_AND | operators::LOGICAL_OR | operators::CONDITIONAL | operators::ADD
            );
            if compares && !name.starts_with("@not") && parts.args.iter().any(is_optional) {
                self.fault(
                    None,
                    "an optional value (.?field, [?key]) cannot be compared: say what it is when it is missing, with .orValue(…)",
                );
            }
            self.all(&parts.args);
            return None;
        }
        let (full, mut count) = match full_name(parts, |name| self.local(name).is_some()) {
            Some(full) => (full, 0),
            None => {
                if let Some(target) = &parts.target {
                    self.walk(target, true);
                }
                (name.to_owned(), usize::from(parts.target.is_some()))
            }
        };
        count += parts.args.len();
        if full == "matches"
            && let Some(Expr::Literal(LiteralValue::String(pattern))) = parts.args.last().map(|arg| &arg.expr)
            && let Err(problem) = functions::regex(pattern.inner())
        {
            self.fault(Some("matches"), problem);
        }
        self.all(&parts.args);
        match functions::arity(&full) {
            None => {
                let hint = nearest(&full, functions::names())
                    .map_or_else(String::new, |near| format!(": did you mean {near}?"));
                self.fault(Some(name), format!("there is no function {full:?}{hint}"));
            }
            Some((least, most)) if !(least..=most).contains(&count) => {
                let wanted = if least == most {
                    least.to_string()
                } else {
                    format!("{least} to {most}")
                };
                self.fault(
                    Some(name),
                    format!("{full} takes {wanted} arguments (the object before the dot counts), not {count}"),
                );
            }
            Some(_) => {}
        }
        None
    }

    fn index(&mut self, operand: &IdedExpr, key: &IdedExpr) -> Option<Place> {
        let place = self.walk(operand, false);
        let place = match (&key.expr, place) {
            (Expr::Literal(LiteralValue::String(field)), Some(place)) => {
                let place = Some(place.field(field.inner()));
                self.known(place, field.inner())
            }
            (Expr::Literal(_), Some(place)) => Some(place.entry()),
            // Which field it is shows only when it runs: all of them are read.
            (_, Some(place)) => {
                self.read(&place);
                None
            }
            (_, None) => None,
        };
        self.walk(key, true);
        place
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) {
        for name in [Some(&it.iter_var), it.iter_var2.as_ref()].into_iter().flatten() {
            if Name::parse(name).is_some() || name == "variables" {
                self.fault(
                    Some(name),
                    format!("{name} cannot be the variable of a loop: the name is taken"),
                );
            }
        }
        let place = self.walk(&it.iter_range, true);
        self.walk(&it.accu_init, true);
        let before = self.locals.len();
        let entry = place.map(Place::entry);
        self.locals.push((it.iter_var.clone(), entry));
        if let Some(second) = &it.iter_var2 {
            self.locals.push((second.clone(), None));
        }
        self.locals.push((it.accu_var.clone(), None));
        self.walk(&it.loop_step, true);
        self.walk(&it.loop_cond, true);
        self.walk(&it.result, true);
        self.locals.truncate(before);
    }

    /// The place, unless no kind has it.
    fn known(&mut self, place: Option<Place>, field: &str) -> Option<Place> {
        let place = place?;
        if place.root == Name::Request && place.path.first() == Some(&Step::Field("userInfo".to_owned())) {
            self.found.asks_for_user = true;
        }
        let Some(known) = place.unknown(self.around.kinds) else {
            return Some(place);
        };
        let hint = match nearest(field, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", crate::report::list(&known)),
        };
        let mut parent = place.clone();
        parent.path.pop();
        self.fault(Some(field), format!("{parent} has no field {field:?}: {hint}"));
        None
    }

    /// Notes that the value at a place counts.
    fn read(&mut self, place: &Place) {
        // Used as a whole, with whatever is in it.
        if place.root == Name::Request && place.path.is_empty() {
            self.found.asks_for_user = true;
        }
        if place.root == Name::Object {
            let path: Vec<Step> = place
                .path
                .iter()
                .take_while(|step| **step != Step::Entry)
                .cloned()
                .collect();
            if !self.found.reads.contains(&path) {
                self.found.reads.push(path);
            }
        }
    }
}

/// Whether it gives an optional value.
fn is_optional(node: &IdedExpr) -> bool {
    match &node.expr {
        Expr::Call(call) => match (call.func_name.as_str(), call.args.first()) {
            (operators::OPT_INDEX | operators::OPT_SELECT, _) => true,
            (operators::INDEX, Some(operand)) => is_optional(operand),
            (name, _) => ["of", "none", "ofNonZeroValue"].contains(&name),
        },
        Expr::Select(select) => !select.test && is_optional(&select.operand),
        _ => false,
    }
}
