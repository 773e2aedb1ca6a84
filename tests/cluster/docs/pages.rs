//! The pages, and one test for each: its own server and a new database, where its SQL runs as a reader would run it.

use std::collections::BTreeSet;

use idgen_testkit::Cluster;

use crate::markdown::{Block, Document};
use crate::{assert_none, assert_same, document, fences, files, psql, root, text_of};

/// The name of the test, and the page.
macro_rules! pages {
    ($($test:ident: $path:literal,)*) => {
        pub const PAGES: &[&str] = &[$($path),*];

        $(#[test]
        fn $test() {
            run($path);
        })*
    };
}

pages! {
    readme_runs_as_shown: "README.md",
    examples_readme_runs_as_shown: "examples/README.md",
    introduction_runs_as_shown: "docs/introduction.md",
    quickstart_runs_as_shown: "docs/quickstart.md",
    concepts_run_as_shown: "docs/concepts.md",
    questions_run_as_shown: "docs/questions.md",
    snowflake_runs_as_shown: "docs/snowflake.md",
    uuid_runs_as_shown: "docs/uuid.md",
    segments_run_as_shown: "docs/segments.md",
    locks_run_as_shown: "docs/locks.md",
    leases_run_as_shown: "docs/leases.md",
    shared_leases_run_as_shown: "docs/shared-leases.md",
    fleet_runs_as_shown: "docs/fleet.md",
    worker_ids_run_as_shown: "docs/worker-ids.md",
    public_ids_run_as_shown: "docs/public-ids.md",
    configuration_runs_as_shown: "docs/configuration.md",
    reference_runs_as_shown: "docs/reference.md",
    functions_that_draw_snowflake_ids_run_as_shown: "docs/functions/snowflake.md",
    functions_that_read_snowflake_ids_run_as_shown: "docs/functions/snowflake-read.md",
    functions_of_uuids_run_as_shown: "docs/functions/uuid.md",
    functions_of_segments_run_as_shown: "docs/functions/segments.md",
    functions_of_fleets_run_as_shown: "docs/functions/fleet.md",
    functions_of_public_ids_run_as_shown: "docs/functions/public-ids.md",
    functions_of_locks_run_as_shown: "docs/functions/locks.md",
    functions_of_leases_run_as_shown: "docs/functions/leases.md",
    functions_of_several_leases_run_as_shown: "docs/functions/several-leases.md",
    functions_of_worker_ids_run_as_shown: "docs/functions/worker-ids.md",
    functions_of_operators_run_as_shown: "docs/functions/operators.md",
    internal_functions_run_as_shown: "docs/functions/internal.md",
    errors_run_as_shown: "docs/errors.md",
    troubleshooting_runs_as_shown: "docs/troubleshooting.md",
    maintenance_runs_as_shown: "docs/maintenance.md",
    operations_run_as_shown: "docs/operations.md",
    security_runs_as_shown: "docs/security.md",
    performance_runs_as_shown: "docs/performance.md",
    architecture_runs_as_shown: "docs/architecture.md",
    testing_runs_as_shown: "docs/testing.md",
    packages_run_as_shown: "docs/packages.md",
    containers_run_as_shown: "docs/containers.md",
    upgrading_runs_as_shown: "docs/upgrading.md",
    monitoring_runs_as_shown: "docs/monitoring.md",
    monitoring_readme_runs_as_shown: "contrib/monitoring/README.md",
    adopt_guide_runs_as_shown: "docs/guides/adopt.md",
    citus_guide_runs_as_shown: "docs/guides/citus.md",
    consumers_guide_runs_as_shown: "docs/guides/consumers.md",
    changes_guide_runs_as_shown: "docs/guides/changes.md",
    django_guide_runs_as_shown: "docs/guides/django.md",
    drizzle_guide_runs_as_shown: "docs/guides/drizzle.md",
    due_tasks_guide_runs_as_shown: "docs/guides/due-tasks.md",
    jdbc_guide_runs_as_shown: "docs/guides/jdbc.md",
    json_guide_runs_as_shown: "docs/guides/json.md",
    knex_guide_runs_as_shown: "docs/guides/knex.md",
    logical_replication_guide_runs_as_shown: "docs/guides/logical-replication.md",
    partitions_guide_runs_as_shown: "docs/guides/partitions.md",
    patroni_guide_runs_as_shown: "docs/guides/patroni.md",
    pg_partman_guide_runs_as_shown: "docs/guides/pg-partman.md",
    pgbouncer_guide_runs_as_shown: "docs/guides/pgbouncer.md",
    shards_guide_runs_as_shown: "docs/guides/shards.md",
    sqlalchemy_guide_runs_as_shown: "docs/guides/sqlalchemy.md",
    sqlx_guide_runs_as_shown: "docs/guides/sqlx.md",
    transactions_guide_runs_as_shown: "docs/guides/transactions.md",
    fences_guide_runs_as_shown: "docs/guides/fences.md",
    id_service_guide_runs_as_shown: "docs/guides/id-service.md",
    guide_from_other_schemes_runs_as_shown: "docs/guides/from-other-schemes.md",
    network_partitions_run_as_shown: "docs/network-partitions.md",
}

/// The table of contents is no page.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Every page. A page that is missing fails in its own test.
pub fn all() -> Vec<Document> {
    PAGES.iter().filter(|path| root().join(path).exists()).map(|path| document(path)).collect()
}

fn run(path: &str) {
    let page = document(path);
    if !page.blocks.iter().any(|block| block.is_sql() || block.info == "ini") {
        return;
    }
    let cluster = Cluster::builder().conf("idgen.worker_id", "0").conf("wal_level", "logical").start();
    let database = database(path);
    cluster.execute(&format!("CREATE DATABASE {database}"));
    let creates_extension = |block: &Block| block.info == "sql" && block.text.contains("CREATE EXTENSION idgen");
    if !page.blocks.iter().any(creates_extension) {
        cluster.client_in(&database).batch_execute("CREATE EXTENSION idgen").expect("idgen is installed");
    }
    if page.blocks.iter().any(Block::is_for_coordinator) {
        begin_coordinator(&cluster);
    }
    let mut wrong = psql::differences(&page, |block| {
        let database = if block.is_for_coordinator() { COORDINATOR } else { &*database };
        psql::run(&cluster, database, &block.text)
    });
    wrong.extend(refused_settings(&page, &cluster));
    assert_none(&wrong);
}

/// The coordinator's database, on the server of the page.
const COORDINATOR: &str = "ids";
/// The role by which the server reaches its coordinator. The page creates it.
const ROLE_AT_COORDINATOR: &str = "fleet";

fn begin_coordinator(cluster: &Cluster) {
    cluster.execute(&format!("CREATE DATABASE {COORDINATOR}"));
    cluster.client_in(COORDINATOR).batch_execute("CREATE EXTENSION idgen").expect("idgen is installed");
    cluster.set_conf("idgen.coordinator", &cluster.connect_string(COORDINATOR, ROLE_AT_COORDINATOR));
    cluster.reload();
}

/// `docs/worker-ids.md` runs in the database `page_worker_ids`.
fn database(path: &str) -> String {
    let name = path.rsplit('/').next().and_then(|file| file.strip_suffix(".md")).expect("a Markdown file");
    format!("page_{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_").to_lowercase())
}

/// The lines of `ini` blocks that ALTER SYSTEM refuses.
fn refused_settings(page: &Document, cluster: &Cluster) -> Vec<String> {
    let mut client = cluster.client();
    let mut refused = Vec::new();
    for block in page.blocks.iter().filter(|block| block.info == "ini") {
        for (name, value) in fences::settings(block).unwrap_or_default() {
            // PostgreSQL quotes each element of a list itself.
            if let Err(error) = client.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'")) {
                let reason = error.as_db_error().map_or(error.to_string(), |error| error.message().to_owned());
                refused.push(page.at(block.line, format!("{name} = {value}: {reason}")));
            }
        }
    }
    refused
}

#[test]
fn every_page_is_in_the_list() {
    let mut found: BTreeSet<_> = files("docs", "md").into_iter().collect();
    found.remove(SUMMARY);
    found.extend(["README.md", "examples/README.md"].map(str::to_owned));
    let mut listed: BTreeSet<_> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(PAGES.len(), listed.len(), "a page is listed twice");
    listed.retain(|page| !page.starts_with("contrib/"));
    assert_same(&document(SUMMARY), &listed, &found);
}

#[test]
fn query_for_rights_that_idgen_has_not_granted_is_the_one_of_the_installation() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let installation = words(&text_of("sql/admin.sql"));
    let (query, _) = installation
        .split_once("FOR statement IN ")
        .and_then(|(_, rest)| rest.split_once(" LOOP"))
        .expect("a loop over the statements");
    let page = words(&text_of("docs/upgrading.md"));
    assert!(page.contains(&format!("```sql {query}; ```")), "docs/upgrading.md lacks: {query}");
}

#[test]
fn refused_settings_are_found() {
    let cluster = Cluster::start();
    let refused = |line: &str| refused_settings(&Document::parse("x.md", &format!("```ini\n{line}\n```\n")), &cluster);
    for line in ["idgen.worker_id = 7", "shared_preload_libraries = 'a, idgen'", "idgen.coordinator = 'host=a'"] {
        assert_eq!(refused(line), [""; 0], "{line}");
    }
    for line in ["idgen.worker_id = x", "idgen.worker = 7", "idgen.layout = 'time:1'", "max_drift = 1"] {
        assert_eq!(refused(line).len(), 1, "{line}");
    }
}
