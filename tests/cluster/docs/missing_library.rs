//! The pages quote what PostgreSQL logs when it does not find the library: one message before the first id of the
//! server, another one after it.

use idgen_testkit::{Cluster, Stop};

use crate::{assert_none, document};

#[test]
fn pages_quote_the_messages_of_a_missing_library_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    let before = refusal(&cluster);
    cluster.execute("SELECT snowflake_next()");
    let after = refusal(&cluster);
    assert_ne!(before, after, "the directory of the high-water file makes a difference");
    for path in ["docs/quickstart.md", "docs/troubleshooting.md"] {
        let page = document(path);
        let lacks = |message: &&String| !page.text.contains(&format!("`{message}`"));
        let wrong = [&before, &after].into_iter().filter(lacks);
        assert_none(&wrong.map(|message| page.at(1, format!("the page lacks {message}"))).collect::<Vec<_>>());
    }
}

/// Starts the server once where it does not find the library, and returns what it logs.
fn refusal(cluster: &Cluster) -> String {
    cluster.stop(Stop::Fast);
    cluster.set_conf("dynamic_library_path", "/nonexistent");
    let report = cluster.try_start().expect_err("there is no library");
    cluster.set_conf("dynamic_library_path", "$libdir");
    cluster.start_again();
    let fatal = report.lines().find_map(|line| line.split_once("FATAL:  "));
    fatal.unwrap_or_else(|| panic!("no reason: {report}")).1.to_owned()
}
