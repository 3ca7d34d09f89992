//! One expression: parsed, checked for what the interpreter would only find when it runs (or never), and rewritten so that
//! it is metered.
//!
//! The rewriting also makes up for three differences between the interpreter and CEL: a field of something that has no
//! fields is an error and not `false`, `a.?b` is nothing and not an error where `b` is missing, and reading a field does not
//! copy what is around it.

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelInt, CelString};
use cel::parser::Parser;
use cel::{Context, ExecutionError, Value};
use tailnet_crds::Kind;
use tailnet_crds::structural::{Step, unknown_step};

use super::functions::{self, STEP, VARIABLE, WEIGH};
use super::scope::Name;

/// Most parts of one expression, nested ones included.
const MAX_PARTS: usize = 3_000;
/// Deepest nesting: every level is some stack of the interpreter.
const MAX_DEPTH: usize = 48;

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
    let mut checker = Checker {
        source,
        around,
        locals: Vec::new(),
        faults: Vec::new(),
        uses: BTreeSet::new(),
        reads: Vec::new(),
        asks_for_user: false,
        parts: 0,
        depth: 0,
    };
    let kind_of_result = result_of(&node);
    let (node, _) = checker.walk(node, true);
    if checker.faults.is_empty()
        && let Some(found) = kind_of_result
        && !wanted.takes(found)
    {
        checker.fault(None, format!("gives {found}, and {} is needed", wanted.words()));
    }
    if !checker.faults.is_empty() {
        return Err(checker.faults);
    }
    Ok(Expression {
        node,
        uses: checker.uses,
        reads: checker.reads,
        asks_for_user: checker.asks_for_user,
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

/// Runs the parser with a stack of its own: it recurses for every operator of a chain.
fn parse(source: &str) -> Result<IdedExpr, Vec<Fault>> {
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

/// Where in the names a value comes from.
#[derive(Debug, Clone)]
struct Place {
    root: Name,
    path: Vec<Step>,
}

struct Checker<'a> {
    source: &'a str,
    around: &'a Surroundings<'a>,
    locals: Vec<(String, Option<Place>)>,
    faults: Vec<Fault>,
    uses: BTreeSet<Name>,
    reads: Vec<Vec<Step>>,
    asks_for_user: bool,
    parts: usize,
    depth: usize,
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

impl Checker<'_> {
    fn fault(&mut self, token: Option<&str>, message: impl Into<String>) {
        let message = message.into();
        let position = token.and_then(|token| find(self.source, token));
        let fault = Fault { position, message };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Checks and rewrites. `whole` says that the value itself is used, and not only something inside it.
    fn walk(&mut self, node: IdedExpr, whole: bool) -> (IdedExpr, Option<Place>) {
        self.parts += 1;
        self.depth += 1;
        if self.parts == MAX_PARTS + 1 {
            self.fault(None, format!("has more than {MAX_PARTS} parts: split it"));
        }
        let id = node.id;
        let (expr, place) = match node.expr {
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => {
                if let Expr::Ident(name) = &select.operand.expr
                    && name == "variables"
                    && self.local(name).is_none()
                {
                    self.depth -= 1;
                    return (self.variable(&select.field), None);
                }
                let (operand, place) = self.walk(*select.operand, false);
                let place = place.map(|place| place.field(&select.field));
                let place = self.known(place, &select.field);
                let expr = if select.test {
                    Expr::Select(cel::common::ast::SelectExpr {
                        operand: Box::new(operand),
                        field: select.field,
                        test: true,
                    })
                } else {
                    call(operators::INDEX, vec![operand, text(&select.field)])
                };
                (expr, place)
            }
            Expr::Call(parts) => self.call(parts),
            Expr::Comprehension(loop_) => self.comprehension(*loop_),
            Expr::List(mut list) => {
                list.elements = list.elements.into_iter().map(|element| self.element(element)).collect();
                (Expr::List(list), None)
            }
            Expr::Map(mut map) => {
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        entry.key = self.element(std::mem::take(&mut entry.key));
                        entry.value = self.element(std::mem::take(&mut entry.value));
                    }
                }
                (Expr::Map(map), None)
            }
            Expr::Struct(message) => {
                self.fault(
                    Some(&message.type_name),
                    "messages such as Type{…} are not known here: write a map, {'key': value}",
                );
                (Expr::Literal(LiteralValue::Null), None)
            }
            Expr::Unspecified => {
                self.fault(None, "cannot be read");
                (Expr::Literal(LiteralValue::Null), None)
            }
            Expr::Literal(value) => (Expr::Literal(value), None),
        };
        self.depth -= 1;
        if whole && let Some(place) = &place {
            self.read(place);
        }
        (IdedExpr { id, expr }, place)
    }

    /// An entry of a list or map that is built: its size counts.
    fn element(&mut self, node: IdedExpr) -> IdedExpr {
        let constant = matches!(node.expr, Expr::Literal(_));
        let (node, _) = self.walk(node, true);
        if constant { node } else { weighed(node) }
    }

    fn local(&self, name: &str) -> Option<&Option<Place>> {
        self.locals
            .iter()
            .rev()
            .find(|(local, _)| local == name)
            .map(|(_, place)| place)
    }

    fn ident(&mut self, name: String) -> (Expr, Option<Place>) {
        if let Some(place) = self.local(&name) {
            let place = place.clone();
            return (Expr::Ident(name), place);
        }
        if let Some(root) = Name::parse(&name) {
            self.uses.insert(root);
            let path = Vec::new();
            return (Expr::Ident(name), Some(Place { root, path }));
        }
        let message = match name.as_str() {
            "variables" => "variables are read by their names, as variables.NAME".to_owned(),
            "self" | "oldSelf" => "policies speak of object and oldObject".to_owned(),
            "params" | "authorizer" => format!("{name} of Kubernetes' policies is not known here"),
            _ => {
                let names = Name::ALL.map(Name::as_str);
                let hint = nearest(&name, names).map_or_else(String::new, |near| format!(": did you mean {near}?"));
                format!("{name:?} is not known{hint}")
            }
        };
        self.fault(Some(&name), message);
        (Expr::Literal(LiteralValue::Null), None)
    }

    fn variable(&mut self, name: &str) -> IdedExpr {
        let found = self.around.variables.iter().position(|(known, _)| known == name);
        let Some(at) = found else {
            let known = self.around.variables.iter().map(|(name, _)| name.as_str());
            let hint = nearest(name, known).map_or_else(
                || ": a variable is known to what stands after it".to_owned(),
                |near| format!(": did you mean {near}?"),
            );
            self.fault(Some(name), format!("there is no variable {name:?}{hint}"));
            return literal(LiteralValue::Null);
        };
        if let Some((_, variable)) = self.around.variables.get(at) {
            self.uses.extend(variable.uses.iter().copied());
            self.asks_for_user |= variable.asks_for_user;
            for path in &variable.reads {
                if !self.reads.contains(path) {
                    self.reads.push(path.clone());
                }
            }
        }
        IdedExpr {
            id: 0,
            expr: call(VARIABLE, vec![number(at)]),
        }
    }

    fn call(&mut self, mut parts: CallExpr) -> (Expr, Option<Place>) {
        let name = parts.func_name.clone();
        match (name.as_str(), parts.args.len()) {
            (operators::INDEX | operators::OPT_INDEX, 2) | (operators::OPT_SELECT, 2) => {
                let key = parts.args.pop().unwrap_or_default();
                let operand = parts.args.pop().unwrap_or_default();
                let (operand, place) = self.walk(operand, false);
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
                let (key, _) = self.walk(key, true);
                let operator = if name == operators::OPT_SELECT {
                    operators::OPT_INDEX
                } else {
                    name.as_str()
                };
                return (call(operator, vec![operand, key]), place);
            }
            (operators::ADD, 2) => {
                let args = parts.args.into_iter().map(|arg| self.walk(arg, true).0).collect();
                let sum = IdedExpr {
                    id: 0,
                    expr: call(operators::ADD, args),
                };
                return (weighed(sum).expr, None);
            }
            _ => {}
        }
        if is_operator(&name) {
            // The interpreter finds two optional values never equal, and compares one with nothing.
            let compares = !matches!(
                name.as_str(),
                operators::LOGICAL_AND | operators::LOGICAL_OR | operators::CONDITIONAL
            );
            if compares && !name.starts_with("@not") && parts.args.iter().any(is_optional) {
                self.fault(
                    None,
                    "an optional value (.?field, [?key]) cannot be compared: say what it is when it is missing, with .orValue(…)",
                );
            }
            parts.args = parts.args.into_iter().map(|arg| self.walk(arg, true).0).collect();
            return (Expr::Call(parts), None);
        }
        // `sets.contains(…)`: the target is no value but the first half of the name.
        let prefix = parts.target.as_deref().and_then(|target| match &target.expr {
            Expr::Ident(prefix) if self.local(prefix).is_none() => Some(format!("{prefix}.{name}")),
            _ => None,
        });
        let (full, mut count) = match prefix.filter(|full| functions::arity(full).is_some()) {
            Some(full) => (full, 0),
            None => {
                let target = parts.target.take();
                let count = usize::from(target.is_some());
                parts.target = target.map(|target| Box::new(self.walk(*target, true).0));
                (name.clone(), count)
            }
        };
        count += parts.args.len();
        if full == "matches"
            && let Some(Expr::Literal(LiteralValue::String(pattern))) = parts.args.last().map(|arg| &arg.expr)
            && let Err(problem) = functions::regex(pattern.inner())
        {
            self.fault(Some("matches"), problem);
        }
        parts.args = parts.args.into_iter().map(|arg| self.walk(arg, true).0).collect();
        match functions::arity(&full) {
            None => {
                let hint = nearest(&full, functions::names())
                    .map_or_else(String::new, |near| format!(": did you mean {near}?"));
                self.fault(Some(&name), format!("there is no function {full:?}{hint}"));
            }
            Some((least, most)) if !(least..=most).contains(&count) => {
                let wanted = if least == most {
                    least.to_string()
                } else {
                    format!("{least} to {most}")
                };
                self.fault(
                    Some(&name),
                    format!("{full} takes {wanted} arguments (the object before the dot counts), not {count}"),
                );
            }
            Some(_) => {}
        }
        let value = IdedExpr {
            id: 0,
            expr: Expr::Call(parts),
        };
        (weighed(value).expr, None)
    }

    fn comprehension(&mut self, mut it: cel::common::ast::ComprehensionExpr) -> (Expr, Option<Place>) {
        for name in [Some(&it.iter_var), it.iter_var2.as_ref()].into_iter().flatten() {
            if Name::parse(name).is_some() || name == "variables" {
                let name = name.clone();
                self.fault(
                    Some(&name),
                    format!("{name} cannot be the variable of a loop: the name is taken"),
                );
            }
        }
        let (range, place) = self.walk(it.iter_range, true);
        it.iter_range = range;
        it.accu_init = self.walk(it.accu_init, true).0;
        let before = self.locals.len();
        let entry = place.map(Place::entry);
        self.locals.push((it.iter_var.clone(), entry));
        if let Some(second) = &it.iter_var2 {
            self.locals.push((second.clone(), None));
        }
        self.locals.push((it.accu_var.clone(), None));
        let parts = self.parts;
        it.loop_step = self.walk(it.loop_step, true).0;
        let condition = self.walk(it.loop_cond, true).0;
        let weight = self.parts - parts;
        it.loop_cond = IdedExpr {
            id: 0,
            expr: call(STEP, vec![number(weight), condition]),
        };
        it.result = self.walk(it.result, true).0;
        self.locals.truncate(before);
        (Expr::Comprehension(Box::new(it)), None)
    }

    /// The place, unless no kind has it.
    fn known(&mut self, place: Option<Place>, field: &str) -> Option<Place> {
        let place = place?;
        if place.root == Name::Request && place.path.first() == Some(&Step::Field("userInfo".to_owned())) {
            self.asks_for_user = true;
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
            self.asks_for_user = true;
        }
        if place.root == Name::Object {
            let path: Vec<Step> = place
                .path
                .iter()
                .take_while(|step| **step != Step::Entry)
                .cloned()
                .collect();
            if !self.reads.contains(&path) {
                self.reads.push(path);
            }
        }
    }
}

fn weighed(node: IdedExpr) -> IdedExpr {
    IdedExpr {
        id: 0,
        expr: call(WEIGH, vec![node]),
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

fn is_operator(name: &str) -> bool {
    name.starts_with('_') || name.starts_with('@') || name == operators::LOGICAL_NOT || name == operators::NEGATE
}

impl Place {
    fn field(mut self, name: &str) -> Self {
        self.path.push(Step::Field(name.to_owned()));
        self
    }

    fn entry(mut self) -> Self {
        self.path.push(Step::Entry);
        self
    }

    /// The names that there are instead, where nothing of that name can be there.
    fn unknown(&self, kinds: &[Kind]) -> Option<Vec<String>> {
        let path = match (self.root, self.path.first()) {
            // A list of objects.
            (Name::Others, Some(Step::Entry)) => &self.path[1..],
            _ => &self.path[..],
        };
        if path.is_empty() {
            return None;
        }
        let fixed = |names: &[&str]| {
            let Some(Step::Field(name)) = path.first() else {
                return None;
            };
            (!names.contains(&name.as_str())).then(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        match self.root {
            Name::Request => fixed(&["operation", "kind", "name", "namespace", "dryRun", "userInfo"]),
            Name::NamespaceObject => fixed(&["metadata"]),
            Name::Tailnet => in_schema(&[Kind::Tailnet], path),
            Name::Object | Name::OldObject | Name::Others => in_schema(kinds, path),
        }
    }
}

/// The names that there are instead of the last step, where no kind has it.
fn in_schema(kinds: &[Kind], path: &[Step]) -> Option<Vec<String>> {
    if path.first() == Some(&Step::Field("status".to_owned())) {
        return Some(vec!["metadata".to_owned(), "spec".to_owned()]);
    }
    let mut names = Vec::new();
    for kind in kinds {
        match unknown_step(*kind, path) {
            None => return None,
            // What is wrong further up has been said there.
            Some((at, known)) if at + 1 == path.len() => names.extend(known),
            Some(_) => {}
        }
    }
    names.sort();
    names.dedup();
    Some(names)
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.root.as_str())?;
        f.write_str(&path_text(&self.path, "."))
    }
}

/// A path as text: `spec.targets[]`, each field after `dot`.
pub(crate) fn path_text(path: &[Step], dot: &str) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) => {
                text.push_str(dot);
                text.push_str(name);
            }
            Step::Entry => text.push_str("[]"),
        }
    }
    text
}

/// The nearest of some names, when it is near enough to be meant.
fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    names
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
            (distance, known)
        })
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min()
        .map(|(_, known)| known)
}

/// Line and column (both from 1, in characters) where a word first stands in a source, not as a part of another.
fn find(source: &str, word: &str) -> Option<(usize, usize)> {
    if word.is_empty() {
        return None;
    }
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let (at, _) = source.match_indices(word).find(|(at, _)| {
        let before = source[..*at].chars().next_back();
        let after = source[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })?;
    let line_start = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let line = source[..at].matches('\n').count() + 1;
    Some((line, source[line_start..at].chars().count() + 1))
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
