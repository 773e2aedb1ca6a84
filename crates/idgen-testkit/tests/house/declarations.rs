//! Each C function is declared in `sql/` as it is written in Rust: its arguments, its result, and STRICT if an argument
//! cannot be NULL. PostgreSQL does not compare them, and a difference is a crash or a wrong value.

use crate::imports::{self, repository};
use std::collections::BTreeMap;
use std::fs;
use syn::{FnArg, GenericArgument, Item, ItemFn, PathArguments, ReturnType, Type};

/// A function as PostgreSQL and Rust see it. `None`: the function reads its arguments from the call itself.
#[derive(Debug, PartialEq)]
struct Function {
    arguments: Option<Vec<String>>,
    result: String,
    is_strict: bool,
}

/// The types of SQL, by their names in Rust.
const TYPES: [(&str, &str); 21] = [
    ("Text", "text"),
    ("AsciiText", "text"),
    ("String", "text"),
    ("str", "text"),
    ("bool", "boolean"),
    ("i32", "int"),
    ("i64", "bigint"),
    ("f64", "float8"),
    ("Interval", "interval"),
    ("TimestampWithTimeZone", "timestamptz"),
    ("Uuid", "uuid"),
    ("JsonB", "jsonb"),
    ("ItemPointerData", "tid"),
    ("Oid", "regclass"),
    ("Vec<u8>", "bytea"),
    ("Composite", "record"),
    ("SetOfIterator<record>", "SETOF record"),
    ("TriggerRow", "trigger"),
    ("Datum", "internal"),
    ("Array<text>", "text[]"),
    ("Array<bigint>", "bigint[]"),
];

/// The SQL type of a Rust type, and whether it can be NULL.
fn sql_type(ty: &Type) -> (String, bool) {
    match ty {
        Type::Reference(reference) => sql_type(&reference.elem),
        Type::Tuple(columns) if columns.elems.is_empty() => ("void".to_owned(), false),
        Type::Tuple(columns) => {
            let columns = columns.elems.iter().map(|column| sql_type(column).0);
            (columns.collect::<Vec<_>>().join(", "), false)
        }
        // A column of a table, `name!(column, type)`.
        Type::Macro(named) => {
            let tokens = named.mac.tokens.to_string();
            let (_, ty) = tokens.split_once(',').expect("a name and a type");
            sql_type(&syn::parse_str(ty).expect("a type"))
        }
        Type::Path(path) => {
            let last = path.path.segments.last().expect("a type has a name");
            let name = last.ident.to_string();
            let inner = match &last.arguments {
                PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
                    GenericArgument::Type(ty) => Some(sql_type(ty).0),
                    _ => None,
                }),
                _ => None,
            };
            match (name.as_str(), inner) {
                ("Option", Some(inner)) => (inner, true),
                ("Result", Some(inner)) => (inner, false),
                ("TableIterator", Some(columns)) => (format!("SETOF record ({columns})"), false),
                (_, inner) => {
                    let name = inner.map_or_else(|| name.clone(), |inner| format!("{name}<{inner}>"));
                    let known = TYPES.iter().find(|(rust, _)| *rust == name);
                    (known.map_or(name, |(_, sql)| (*sql).to_owned()), false)
                }
            }
        }
        _ => panic!("a type that no SQL function has"),
    }
}

/// The functions for SQL of a source file, by their symbols.
fn written(source: &str) -> BTreeMap<String, Function> {
    let items = syn::parse_file(source).expect("Rust").items;
    let functions = items.into_iter().filter_map(|item| match item {
        Item::Fn(function) => Some((symbol(&function)?, of(&function))),
        _ => None,
    });
    functions.collect()
}

/// The symbol of a function for SQL. A function that pgrx does not wrap gets the whole call.
fn symbol(function: &ItemFn) -> Option<String> {
    let has = |name| function.attrs.iter().any(|attribute| attribute.path().is_ident(name));
    let is_given_the_call = || {
        let mut types = function.sig.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(argument) => Some(sql_type(&argument.ty).0),
            FnArg::Receiver(_) => None,
        });
        has("unsafe") && types.any(|name| name == "FunctionCallInfo")
    };
    let name = &function.sig.ident;
    match has("pg_extern") {
        true => Some(format!("{name}_wrapper")),
        false => is_given_the_call().then(|| name.to_string()),
    }
}

fn of(function: &ItemFn) -> Function {
    let types = function.sig.inputs.iter().map(|input| match input {
        FnArg::Typed(argument) => sql_type(&argument.ty),
        FnArg::Receiver(_) => unreachable!("no method is a SQL function"),
    });
    let (is_call, arguments): (Vec<_>, Vec<_>) = types.partition(|(name, _)| name == "FunctionCallInfo");
    let result = match &function.sig.output {
        ReturnType::Default => "void".to_owned(),
        ReturnType::Type(_, ty) => sql_type(ty).0,
    };
    Function {
        is_strict: arguments.iter().any(|(_, nullable)| !nullable),
        arguments: (is_call.is_empty() || !arguments.is_empty())
            .then(|| arguments.into_iter().map(|(name, _)| name).collect()),
        result,
    }
}

/// The C functions that a file of SQL declares, by their symbols.
fn declared(sql: &str) -> BTreeMap<String, Function> {
    let statements = sql.split("CREATE FUNCTION ").skip(1).filter_map(|text| {
        let (head, symbol) = text.split_once("AS 'MODULE_PATHNAME', '")?;
        // A function in another language comes before one in C.
        (!head.contains(';')).then(|| (symbol.split('\'').next().expect("a symbol").to_owned(), head))
    });
    statements.map(|(symbol, head)| (symbol, declaration(head))).collect()
}

fn declaration(head: &str) -> Function {
    let (parameters, rest) = head.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).expect("parentheses");
    let mut arguments = Vec::new();
    let mut columns = Vec::new();
    for parameter in parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty()) {
        let parameter = parameter.split(" DEFAULT ").next().expect("a parameter");
        let (names, column) = parameter.strip_prefix("OUT ").map_or((parameter, false), |names| (names, true));
        let (_, ty) = names.split_once(' ').expect("a name and a type");
        if column { &mut columns } else { &mut arguments }.push(ty.to_owned());
    }
    let clause = rest.trim().strip_prefix("RETURNS ").and_then(|rest| rest.split('\n').next());
    let result = clause.unwrap_or("record").to_owned();
    let result = if columns.is_empty() { result } else { format!("{result} ({})", columns.join(", ")) };
    Function { arguments: Some(arguments), result, is_strict: rest.split_whitespace().any(|word| word == "STRICT") }
}

/// What a declaration has that the function does not, or the reverse.
fn difference(written: &Function, declared: &Function) -> Option<&'static str> {
    let set = format!("SETOF {}", written.result);
    let is_same_result = match declared.result.split_once(" (") {
        // Functions that form rows themselves take the types from the declaration.
        Some((kind, _)) if !written.result.contains('(') => kind == written.result,
        _ => declared.result == written.result || written.arguments.is_none() && declared.result == set,
    };
    let is_internal = declared.result == "internal" && written.result == "bigint";
    match &written.arguments {
        Some(arguments) if Some(arguments) != declared.arguments.as_ref() => Some("the arguments differ"),
        _ if written.is_strict && !declared.is_strict => Some("an argument that cannot be NULL, without STRICT"),
        _ if !is_same_result && !is_internal => Some("the results differ"),
        _ => None,
    }
}

#[test]
fn every_c_function_is_declared_as_it_is_written() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let mut written_all = BTreeMap::new();
    for module in imports::read("src").modules {
        written_all.extend(written(&read(&module.file)));
    }
    let mut declared_all = BTreeMap::new();
    for line in read("src/lib.rs").lines().filter_map(|line| line.strip_prefix("extension_sql_file!(\"../")) {
        declared_all.extend(declared(&read(line.split('"').next().expect("a file"))));
    }
    // Those that only the SQL of earlier releases calls have no declaration here.
    let retired = written(&read("src/retired.rs"));
    written_all.retain(|symbol, _| !retired.contains_key(symbol));
    assert_eq!(written_all.keys().collect::<Vec<_>>(), declared_all.keys().collect::<Vec<_>>());
    for (symbol, function) in &written_all {
        let declared = &declared_all[symbol];
        assert_eq!(difference(function, declared), None, "{symbol}: {function:?} and {declared:?}");
    }
}

#[test]
fn differences_are_found() {
    let rust = "#[pg_extern(sql = false)] fn f(a: Text, b: Option<i32>) -> Option<i64> {}";
    let sql = "CREATE FUNCTION f(a text, b int DEFAULT 1) RETURNS bigint\nSTRICT LANGUAGE c AS 'MODULE_PATHNAME', 'f_wrapper';";
    let compare = |sql: &str| difference(&written(rust)["f_wrapper"], &declared(sql)["f_wrapper"]);
    assert_eq!(compare(sql), None);
    for (from, to) in
        [("b int", "b bigint"), (" DEFAULT 1)", ", c text)"), ("STRICT ", ""), ("RETURNS bigint", "RETURNS int")]
    {
        assert!(compare(&sql.replace(from, to)).is_some(), "{from} and {to}");
    }
    let table = "#[pg_extern(sql = false)] fn t() -> TableIterator<'static, (name!(a, i64), name!(b, Option<Text<'static>>))> {}";
    let sql = "CREATE FUNCTION t(OUT a bigint, OUT b text) RETURNS SETOF record\nLANGUAGE c AS 'MODULE_PATHNAME', 't_wrapper';";
    let compare = |sql: &str| difference(&written(table)["t_wrapper"], &declared(sql)["t_wrapper"]);
    assert_eq!(compare(sql), None);
    assert!(compare(&sql.replace("OUT b text", "OUT b int")).is_some());
}
