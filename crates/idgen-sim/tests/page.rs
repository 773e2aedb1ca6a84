//! The page of the architecture prints what the models find.

use idgen_sim::model::page;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md");
const BEGIN: &str = "<!-- model -->\n";
const END: &str = "\n<!-- end of the model -->";

#[test]
fn page_of_the_architecture_prints_what_the_models_find() {
    let path = Path::new(PAGE);
    let is = std::fs::read_to_string(path).expect("the page is readable");
    let (before, rest) = is.split_once(BEGIN).expect("the comment at the beginning");
    let (printed, after) = rest.split_once(END).expect("the comment at the end");
    let found = page::text();
    if std::env::var_os("IDGEN_WRITE_REFERENCE").is_some() {
        std::fs::write(path, [before, BEGIN, &found, END, after].concat()).expect("the page is writable");
    } else {
        assert_eq!(printed, found, "run `make reference`");
    }
}
