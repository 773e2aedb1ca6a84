//! The messages of the code, read from its source: the code and the text of each `Report::new`, `warning!` and `log!`.
//!
//! A text that is put together is followed to its pieces: through `format!`, variables, the branches of `if` and
//! `match`, and the parameters of private functions and closures. Everything else in a text is a value, shown as `...`.

use std::collections::{BTreeMap, BTreeSet};

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprCall, ExprClosure, ExprMacro, Lit, Local, Macro, Pat, Signature, Stmt, Token, Visibility};

/// Stands for a value.
pub const VALUE: &str = "...";

/// The code of a line of the log.
pub const LOG: &str = "LOG";

/// The name of the error code, such as `ERRCODE_INVALID_NAME`, or [`LOG`]; and the text.
pub type Message = (String, String);

/// A text, and the branch that it takes at each variable. Texts that agree in their branches belong together.
#[derive(Clone)]
struct Text {
    branches: BTreeMap<usize, usize>,
    text: String,
}

impl Text {
    fn new(text: impl Into<String>) -> Text {
        Text { branches: BTreeMap::new(), text: text.into() }
    }

    fn value() -> Vec<Text> {
        vec![Text::new(VALUE)]
    }

    fn agrees(&self, other: &Text) -> bool {
        self.branches.iter().all(|(variable, branch)| other.branches.get(variable).is_none_or(|is| is == branch))
    }

    fn then(&self, next: &Text) -> Text {
        let branches = self.branches.iter().chain(&next.branches).map(|(variable, branch)| (*variable, *branch));
        Text { branches: branches.collect(), text: format!("{}{}", self.text, next.text) }
    }
}

/// The messages of a source file.
pub fn messages(path: &str, source: &str) -> BTreeSet<Message> {
    let file = syn::parse_file(source).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut reader = Reader::default();
    reader.within(Scope::default(), |reader| reader.visit_file(&file));
    assert!(reader.unread.is_empty(), "{path}: cannot read the messages of {:?}", reader.unread);
    let mut found = BTreeSet::new();
    for (at, code, text) in &reader.reports {
        let codes = reader.texts(*at, code);
        for text in reader.texts(*at, text) {
            let shown = shown(&text.text);
            assert!(shown.contains(char::is_alphabetic), "{path}: cannot read a message: {shown}");
            for code in codes.iter().filter(|code| code.agrees(&text)) {
                assert!(is_code(&code.text), "{path}: cannot read the code of a message: {shown}");
                found.insert((code.text.clone(), shown.clone()));
            }
        }
    }
    found
}

fn is_code(name: &str) -> bool {
    name == LOG || name.starts_with("ERRCODE_")
}

/// Values that only a period separates, as in a qualified name, are shown as one.
fn shown(text: &str) -> String {
    let mut shown = text.to_owned();
    while shown.contains("....") {
        shown = shown.replace("....", VALUE);
    }
    shown
}

/// A place in the file: a scope, and how many variables were defined before.
#[derive(Clone, Copy)]
struct Place {
    scope: usize,
    defined: usize,
}

/// A function, a closure or the file.
#[derive(Default)]
struct Scope {
    name: String,
    /// Callers in other files are not read.
    is_public: bool,
    parameters: Vec<String>,
    variables: Vec<Variable>,
    parent: Option<usize>,
}

struct Variable {
    number: usize,
    name: String,
    /// Its index if the pattern is a tuple.
    element: Option<usize>,
    value: Expr,
}

#[derive(Default)]
struct Reader {
    scopes: Vec<Scope>,
    current: usize,
    defined: usize,
    calls: Vec<(Place, String, Vec<Expr>)>,
    /// The code and the text of each message.
    reports: Vec<(Place, Expr, Expr)>,
    /// Macros that raise something else.
    unread: Vec<String>,
}

/// Every text that an expression can have.
impl Reader {
    fn texts(&self, at: Place, expr: &Expr) -> Vec<Text> {
        match expr {
            Expr::Lit(lit) => match &lit.lit {
                Lit::Str(text) => vec![Text::new(text.value())],
                _ => Text::value(),
            },
            Expr::Macro(call) if call.mac.path.is_ident("format") => self.formatted(at, &arguments(&call.mac)),
            Expr::MethodCall(call) if ["to_owned", "to_string", "into"].contains(&&*call.method.to_string()) => {
                self.texts(at, &call.receiver)
            }
            Expr::Reference(reference) => self.texts(at, &reference.expr),
            Expr::Path(path) => {
                let last = path.path.segments.last().expect("a path has a segment").ident.to_string();
                match path.path.get_ident() {
                    _ if is_code(&last) => vec![Text::new(last)],
                    Some(_) => self.named(at, &last),
                    None => Text::value(),
                }
            }
            Expr::Match(_) | Expr::If(_) | Expr::Block(_) => {
                leaves(expr).into_iter().flat_map(|leaf| self.texts(at, leaf)).collect()
            }
            _ => Text::value(),
        }
    }

    /// The texts of a variable or a parameter.
    fn named(&self, at: Place, name: &str) -> Vec<Text> {
        let scope = &self.scopes[at.scope];
        let variables = scope.variables.iter().filter(|variable| variable.number < at.defined);
        if let Some(variable) = variables.rev().find(|variable| variable.name == name) {
            let before = Place { defined: variable.number, ..at };
            let leaves = leaves(&variable.value).into_iter().map(|leaf| match (variable.element, leaf) {
                (Some(element), Expr::Tuple(tuple)) => (before, &tuple.elems[element]),
                _ => (before, leaf),
            });
            return self.branches(variable.number, leaves);
        }
        if let Some(place) = scope.parameters.iter().position(|parameter| parameter == name) {
            let calls = self.calls.iter().filter(|(_, callee, _)| *callee == scope.name && !scope.is_public);
            let given = calls.filter_map(|(from, _, arguments)| Some((*from, arguments.get(place)?)));
            return self.branches(usize::MAX - at.scope, given);
        }
        scope.parent.map_or_else(Text::value, |parent| self.named(Place { scope: parent, ..at }, name))
    }

    fn branches<'a>(&self, variable: usize, values: impl Iterator<Item = (Place, &'a Expr)>) -> Vec<Text> {
        let mut found = Vec::new();
        for (branch, (at, value)) in values.enumerate() {
            for mut text in self.texts(at, value) {
                text.branches.insert(variable, branch);
                found.push(text);
            }
        }
        if found.iter().all(|text| text.text == VALUE) { Text::value() } else { found }
    }

    fn formatted(&self, at: Place, arguments: &[Expr]) -> Vec<Text> {
        let Some(Expr::Lit(template)) = arguments.first() else { return Text::value() };
        let Lit::Str(template) = &template.lit else { return Text::value() };
        let template = template.value();
        let mut positional = arguments[1..].iter();
        let (begin, pieces) = template.split_once('{').unwrap_or((&template, ""));
        let mut texts = vec![Text::new(begin)];
        for piece in pieces.split('{').filter(|piece| !piece.is_empty()) {
            let (value, after) = piece.split_once('}').expect("a closed brace");
            let inserted = match value.split(':').next().unwrap_or_default() {
                "" => positional.next().map_or_else(Text::value, |argument| self.texts(at, argument)),
                name => self.named(at, name),
            };
            texts = joined(&joined(&texts, &inserted), &[Text::new(after)]);
        }
        texts
    }
}

fn joined(texts: &[Text], next: &[Text]) -> Vec<Text> {
    let agreeing = |text: &Text| next.iter().filter(|next| text.agrees(next)).map(|next| text.then(next)).collect();
    texts.iter().flat_map(|text| -> Vec<Text> { agreeing(text) }).collect()
}

/// The last expression of each branch. Of an expression without branches, itself.
fn leaves(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Match(matched) => matched.arms.iter().flat_map(|arm| leaves(&arm.body)).collect(),
        Expr::If(branch) => {
            let other = branch.else_branch.iter().flat_map(|(_, other)| leaves(other));
            leaves_of_block(&branch.then_branch).into_iter().chain(other).collect()
        }
        Expr::Block(block) => leaves_of_block(&block.block),
        _ => vec![expr],
    }
}

fn leaves_of_block(block: &Block) -> Vec<&Expr> {
    match block.stmts.last() {
        Some(Stmt::Expr(last, None)) => leaves(last),
        _ => Vec::new(),
    }
}

fn arguments(call: &Macro) -> Vec<Expr> {
    let parsed = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.tokens.clone());
    parsed.expect("the arguments of format!").into_iter().collect()
}

fn name_of(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(ident) => Some(ident.ident.to_string()),
        Pat::Type(typed) => name_of(&typed.pat),
        _ => None,
    }
}

/// Collects scopes, variables, calls and messages.
impl Reader {
    fn here(&self) -> Place {
        Place { scope: self.current, defined: self.defined }
    }

    fn within(&mut self, scope: Scope, read: impl FnOnce(&mut Self)) {
        let parent = self.current;
        self.current = self.scopes.len();
        self.scopes.push(scope);
        read(self);
        self.current = parent;
    }

    fn function(&mut self, signature: &Signature, visibility: &Visibility, read: impl FnOnce(&mut Self)) {
        let parameters = signature.inputs.iter().map(|input| match input {
            syn::FnArg::Typed(typed) => name_of(&typed.pat).unwrap_or_default(),
            syn::FnArg::Receiver(_) => String::new(),
        });
        let is_public = !matches!(visibility, Visibility::Inherited);
        let (name, parameters) = (signature.ident.to_string(), parameters.collect());
        self.within(Scope { name, is_public, parameters, ..Scope::default() }, read);
    }

    fn closure(&mut self, name: String, closure: &ExprClosure) {
        let parameters = closure.inputs.iter().map(|input| name_of(input).unwrap_or_default()).collect();
        let parent = Some(self.current);
        self.within(Scope { name, parameters, parent, ..Scope::default() }, |reader| reader.visit_expr(&closure.body));
    }

    fn define(&mut self, name: Option<String>, element: Option<usize>, value: &Expr) {
        let variable = name.map(|name| Variable { number: self.defined, name, element, value: value.clone() });
        self.scopes[self.current].variables.extend(variable);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.vis, |reader| visit::visit_item_fn(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.vis, |reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        self.closure(String::new(), closure);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let Some(init) = &local.init else { return };
        match (&*init.expr, name_of(&local.pat)) {
            (Expr::Closure(closure), Some(name)) => self.closure(name, closure),
            _ => visit::visit_local(self, local),
        }
        match &local.pat {
            // The elements of a tuple take the same branch, so they have one number.
            Pat::Tuple(tuple) => {
                for (element, pattern) in tuple.elems.iter().enumerate() {
                    self.define(name_of(pattern), Some(element), &init.expr);
                }
            }
            pattern => self.define(name_of(pattern), None, &init.expr),
        }
        self.defined += 1;
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        visit::visit_expr_call(self, call);
        let Expr::Path(callee) = &*call.func else { return };
        let names: Vec<String> = callee.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let arguments: Vec<Expr> = call.args.iter().cloned().collect();
        match (&names[..], &arguments[..]) {
            ([.., report, new], [code, text]) if report == "Report" && new == "new" => {
                self.reports.push((self.here(), code.clone(), text.clone()));
            }
            _ => self.calls.push((self.here(), names.last().cloned().unwrap_or_default(), arguments)),
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let code = match call.path.get_ident().map(ToString::to_string).as_deref() {
            Some("warning") => "PgSqlErrorCode::ERRCODE_WARNING",
            Some("log") => "PgLogLevel::LOG",
            Some(name @ ("ereport" | "error" | "info" | "notice")) => return self.unread.push(name.to_owned()),
            _ => return,
        };
        let mac = Macro { path: syn::parse_str("format").expect("a path"), ..call.clone() };
        let text = Expr::Macro(ExprMacro { attrs: Vec::new(), mac });
        self.reports.push((self.here(), syn::parse_str(code).expect("a path"), text));
    }
}

#[test]
fn messages_are_read_from_their_pieces() {
    let read = |source: &str| messages("x.rs", source);
    let of = |(code, text): &(&str, &str)| (code.replace('E', "ERRCODE_"), (*text).to_owned());
    for (source, expected) in [
        (r#"fn a() { Report::new(C::ERRCODE_A, "one").hint("two"); }"#, &[("EA", "one")][..]),
        (
            r#"pub fn a(b: &str) { Report::new(ERRCODE::ERRCODE_A, format!("\"{b}\" of {}: {c:?}", b.d)); }"#,
            &[("EA", "\"...\" of ...: ...")],
        ),
        (r#"fn a() { Report::new(ERRCODE_A, format!("no {}.{b}", c)); }"#, &[("EA", "no ...")]),
        (r#"fn a(x: X) { warning!("w {x}"); log!("l"); }"#, &[("EWARNING", "w ..."), ("LOG", "l")]),
        (
            r#"fn a(x: X) { let m = match x { B => { let e = if y { "f" } else { "g" }; format!("b {e}") }
                                              C => "c".to_owned() };
               Report::new(C::ERRCODE_A, m) }"#,
            &[("EA", "b f"), ("EA", "b g"), ("EA", "c")],
        ),
        (
            r#"fn a(x: X) { let (code, m) = match x { B => (C::ERRCODE_B, "b"), _ => (C::ERRCODE_C, "c") };
               Report::new(code, format!("it is {m}")) }"#,
            &[("EB", "it is b"), ("EC", "it is c")],
        ),
        (
            r#"fn a() { b(C::ERRCODE_A, "one") } pub fn c(name: &str) { b(C::ERRCODE_B, name) }
               fn b(code: C, name: &str) { Report::new(code, format!("{name} must be")) }"#,
            &[("EA", "one must be"), ("EB", "... must be")],
        ),
        (
            r#"pub fn a(m: M) { let f = |m: &str| Report::new(C::ERRCODE_A, format!("file \"{PATH}\" {m}"));
               match m { B => f("is b"), C(c) => f(&format!("has {c}")) } }"#,
            &[("EA", "file \"...\" has ..."), ("EA", "file \"...\" is b")],
        ),
        (
            r#"pub fn a(m: &str) { let m = m.to_owned(); Report::new(C::ERRCODE_A, format!("a {m}")); }"#,
            &[("EA", "a ...")],
        ),
    ] {
        assert_eq!(read(source), expected.iter().map(of).collect(), "{source}");
    }
}

#[test]
#[should_panic(expected = "cannot read the messages of [\"error\"]")]
fn another_way_to_raise_is_reported() {
    messages("x.rs", "fn a() { error!(\"a\"); }");
}

#[test]
#[should_panic(expected = "cannot read the code")]
fn code_that_cannot_be_read_is_reported() {
    messages("x.rs", "pub fn a(code: C) { Report::new(code, \"a\"); }");
}

#[test]
#[should_panic(expected = "cannot read a message")]
fn message_that_cannot_be_read_is_reported() {
    messages("x.rs", "pub fn a(text: String) { Report::new(C::ERRCODE_A, text); }");
}
