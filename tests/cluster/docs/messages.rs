//! The messages of the code, read from its source: the declarations of `errors!`, and the lines of `log!`. A value in a text
//! is shown as `...`.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream, Parser, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, ExprCall, Ident, LitStr, Macro, Token, braced, parenthesized};

/// Stands for a value.
pub const VALUE: &str = "...";

/// The code of a line of the log.
pub const LOG: &str = "LOG";

/// The name of the error code, such as `ERRCODE_INVALID_NAME`, or [`LOG`]; and the text.
pub type Message = (String, String);

/// The messages of a source file.
pub fn messages(path: &str, source: &str) -> BTreeSet<Message> {
    let file = syn::parse_file(source).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut reader = Reader::default();
    reader.visit_file(&file);
    assert!(reader.unread.is_empty(), "{path}: cannot read the messages of {:?}", reader.unread);
    for (_, text) in &reader.found {
        assert!(text.contains(char::is_alphabetic), "{path}: cannot read a message: {text}");
    }
    reader.found
}

/// Values that only a period separates, as in a qualified name, are shown as one.
fn shown(template: &str) -> String {
    let (begin, pieces) = template.split_once('{').unwrap_or((template, ""));
    let after = pieces.split('{').filter_map(|piece| piece.split_once('}'));
    let mut shown: String = [begin].into_iter().chain(after.flat_map(|(_, after)| [VALUE, after])).collect();
    while shown.contains("....") {
        shown = shown.replace("....", VALUE);
    }
    shown
}

/// What `errors!` contains.
struct Declarations(Vec<Message>);

impl Parse for Declarations {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut found = Vec::new();
        while !input.is_empty() {
            Attribute::parse_outer(input)?;
            input.parse::<Token![fn]>()?;
            input.parse::<Ident>()?;
            let (arguments, body);
            parenthesized!(arguments in input);
            arguments.parse::<TokenStream>()?;
            braced!(body in input);
            let code: Ident = body.parse()?;
            body.parse::<Token![:]>()?;
            found.push((code.to_string(), shown(&body.parse::<LitStr>()?.value())));
            body.parse::<TokenStream>()?;
        }
        Ok(Self(found))
    }
}

fn first_literal(input: ParseStream) -> Result<String> {
    let text: LitStr = input.parse()?;
    input.parse::<TokenStream>()?;
    Ok(text.value())
}

#[derive(Default)]
struct Reader {
    found: BTreeSet<Message>,
    /// What raises a message that is not declared.
    unread: Vec<String>,
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        visit::visit_expr_call(self, call);
        let syn::Expr::Path(callee) = &*call.func else { return };
        let names: Vec<String> = callee.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.ends_with(&["Report".to_owned(), "new".to_owned()]) {
            self.unread.push(names.join("::"));
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        match call.path.get_ident().map(ToString::to_string).as_deref() {
            Some("errors") => match call.parse_body::<Declarations>() {
                Ok(declarations) => self.found.extend(declarations.0),
                Err(error) => self.unread.push(format!("errors: {error}")),
            },
            Some("log") => match first_literal.parse2(call.tokens.clone()) {
                Ok(text) => drop(self.found.insert((LOG.to_owned(), shown(&text)))),
                Err(error) => self.unread.push(format!("log: {error}")),
            },
            Some(name @ ("ereport" | "error" | "warning" | "info" | "notice")) => self.unread.push(name.to_owned()),
            _ => {}
        }
    }
}

#[test]
fn messages_are_read_from_their_declarations() {
    let source = r#"
        errors! {
            /// Why.
            fn a(b: &str) {
                ERRCODE_A: "\"{b}\" of {}: {c:?}", b.d;
                hint: "two";
            }

            fn e() {
                ERRCODE_B: "no {}.{b}", c;
            }
        }
        fn f(x: X) { log!("l {x}"); }"#;
    let expected = [("ERRCODE_A", "\"...\" of ...: ..."), ("ERRCODE_B", "no ..."), ("LOG", "l ...")];
    assert_eq!(messages("x.rs", source), expected.map(|(code, text)| (code.to_owned(), text.to_owned())).into());
}

#[test]
fn other_ways_to_raise_are_reported() {
    for source in [
        "error!(\"a\");",
        "Report::new(ERRCODE_A, \"a\").raise();",
        "ereport::Report::new(ERRCODE_A, \"a\");",
        "log!(text);",
        "errors! { fn a() { \"a\"; } }",
        "errors! { fn a() { ERRCODE_A: \"{}\", text; } }",
    ] {
        let read = std::panic::catch_unwind(|| messages("x.rs", &format!("fn f() {{ {source} }}")));
        assert!(read.is_err(), "{source}");
    }
}
