//! The guide on Django, with the project in `examples/django`: `ids.py`, `apps.py`, `models.py`, the migration
//! `0002_snowflake_ids.py`, `views.py` and `order.html`.

use std::process::Command;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{execute, ids, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::counting::counting_cluster;
use crate::frameworks::{Counted, as_javascript_reads_it, database_of_app, python, run_cases};
use crate::keys;

const DIRECTORY: &str = "examples/django";

/// The project's `manage.py`, as the role `app` in this database.
fn manage(cluster: &Cluster, database: &str, arguments: &[&str]) -> Command {
    let mut command = python(cluster, database, "app", DIRECTORY);
    command.arg("manage.py").args(arguments);
    command
}

/// A server whose database `shop` has the tables of the project.
fn migrated() -> (Cluster, Client) {
    let cluster = counting_cluster();
    let mut client = database_of_app(&cluster, "shop");
    execute(&mut client, "CREATE EXTENSION idgen");
    run(&mut manage(&cluster, "shop", &["migrate"]));
    (cluster, client)
}

fn cases(cluster: &Cluster, names: &[&str]) -> Counted {
    run_cases(&mut python(cluster, "shop", "postgres", DIRECTORY), "django_cases.py", names)
}

#[test]
fn django_bulk_create_costs_one_statement_for_1000_rows() {
    let (cluster, _client) = migrated();
    let counted = cases(&cluster, &["bulk_create", "save", "drawn", "save_with_drawn_id"]);
    let inserts = |case, table: &str| counted.calls(case, &format!("INSERT INTO \"shop_{table}\" "));
    assert_eq!(inserts("bulk_create", "customer"), 1);
    assert_eq!(inserts("bulk_create", "order"), 1, "children of objects that bulk_create has made");
    assert_eq!(inserts("save", "customer"), 1000);
    assert_eq!(counted.calls("drawn", "SELECT snowflake_next_many("), 1);
    assert_eq!((inserts("drawn", "order"), inserts("drawn", "item")), (1, 1));
    assert_eq!(inserts("save_with_drawn_id", "customer"), 2);
    assert_eq!(counted.calls("save_with_drawn_id", "UPDATE"), 1, "save() without force_insert tries to update first");
}

/// Migrates to the time before snowflake ids.
fn migrate_with_auto_field(cluster: &Cluster, database: &str) {
    let script = "import settings; settings.DEFAULT_AUTO_FIELD = 'django.db.models.AutoField'
from django.core.management import execute_from_command_line as execute
execute(['manage.py', 'migrate', 'shop', '0001'])";
    let mut command = python(cluster, database, "app", DIRECTORY);
    run(command.env("DJANGO_SETTINGS_MODULE", "settings").args(["-c", script]));
}

/// Rows from before the migration, for tables whose keys are identities, and as Django made them before 4.1.
fn insert_old_rows(client: &mut Client, serial: bool) {
    if serial {
        keys::make_serials(client);
    }
    execute(client, "INSERT INTO shop_customer (name) SELECT 'old' FROM generate_series(1, 3)");
    execute(client, "INSERT INTO shop_order (customer_id) SELECT id FROM shop_customer");
    execute(client, WATCH);
}

const WATCH: &str = "INSERT INTO shop_order_watchers (order_id, customer_id) SELECT id, customer_id FROM shop_order
                     EXCEPT SELECT order_id, customer_id FROM shop_order_watchers ORDER BY 1";

#[test]
fn django_migration_converts_tables_that_exist() {
    let cluster = counting_cluster();
    for serial in [false, true] {
        let database = if serial { "serial" } else { "identity" };
        let mut client = database_of_app(&cluster, database);
        execute(&mut client, "CREATE EXTENSION idgen");
        let migrate = |to: &[&str]| run(&mut manage(&cluster, database, &[&["migrate"], to].concat()));
        migrate_with_auto_field(&cluster, database);
        insert_old_rows(&mut client, serial);
        migrate(&[]);
        keys::assert_clean(&mut client);
        assert_eq!(keys::of_sequences(&mut client), ["django_migrations.id"]);
        let converted = ["shop_customer.id", "shop_item.id", "shop_order.id", "shop_order_watchers.id"];
        assert_eq!(keys::of_snowflakes(&mut client), converted);
        execute(&mut client, "INSERT INTO shop_customer (name) VALUES ('new')");
        execute(&mut client, "INSERT INTO shop_order (customer_id) SELECT max(id) FROM shop_customer");
        let orders = ids(&mut client, "SELECT id FROM shop_order ORDER BY id");
        assert_eq!(orders[..3], [1, 2, 3]);
        assert_increasing(&orders);
        execute(&mut client, WATCH);
        let watchers = ids(&mut client, "SELECT id FROM shop_order_watchers ORDER BY order_id");
        assert_eq!(watchers[..3], [1, 2, 3]);
        assert_increasing(&watchers);
        assert!(value::<bool>(&mut client, "SELECT now() - snowflake_time(max(id)) < '1 minute' FROM shop_order"));
        if serial {
            let found = run(&mut manage(&cluster, database, &["makemigrations", "--check"]));
            assert!(found.contains("No changes detected"), "{found}");
            // loaddata sets the sequences of a table, of which there are none now.
            let fixture = tempfile::Builder::new().suffix(".json").tempfile().expect("a temporary file");
            let path = fixture.path().to_str().expect("a path of ASCII");
            run(&mut manage(&cluster, database, &["dumpdata", "-o", path]));
            run(&mut manage(&cluster, database, &["loaddata", path]));
        }
        // Back, once the rows with snowflake ids are gone.
        for table in ["shop_order_watchers", "shop_order", "shop_customer"] {
            execute(&mut client, &format!("DELETE FROM {table} WHERE id > 3"));
        }
        execute(&mut client, "SELECT segment_create('kept')");
        migrate(&["shop", "0001"]);
        let sql = "INSERT INTO shop_order (customer_id) VALUES (1) RETURNING id";
        assert_eq!(value::<i32>(&mut client, sql), 4);
        assert_eq!(ids(&mut client, &format!("{WATCH} RETURNING id")), [4]);
        let segments = "SELECT count(*) FROM idgen.segment";
        assert_eq!(value::<i64>(&mut client, segments), 1, "the extension is still there");
    }
}

#[test]
fn django_db_default_leaves_ids_unknown_after_bulk_create() {
    let (cluster, _client) = migrated();
    cases(&cluster, &["db_default", "ignored_conflicts"]);
}

#[test]
fn django_first_migration_of_a_new_project_creates_the_extension_first() {
    let cluster = counting_cluster();
    let mut client = database_of_app(&cluster, "bare");
    let output = manage(&cluster, "bare", &["migrate"]).output().expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("permission denied to create extension"), "{errors}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(value::<i64>(&mut client, tables), 0, "it failed before the first table");
    run(python(&cluster, "bare", "postgres", DIRECTORY).args(["manage.py", "migrate"]));
    assert_eq!(keys::of_sequences(&mut client), [""; 0]);
    // Any role, once an administrator has created the extension.
    let mut client = database_of_app(&cluster, "prepared");
    execute(&mut client, "CREATE EXTENSION idgen");
    run(&mut manage(&cluster, "prepared", &["migrate"]));
    assert!(keys::of_snowflakes(&mut client).contains(&"django_migrations.id".to_owned()));
}

#[test]
fn django_ids_reach_javascript_as_texts() {
    let (cluster, _client) = migrated();
    let body = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = python(&cluster, "shop", "postgres", DIRECTORY);
    run_cases(command.env("BODY", body.path()), "django_cases.py", &["web"]);
    let written = std::fs::read_to_string(&body).expect("the case has written it");
    let (id, body) = written.split_once(' ').expect("an id and a body");
    assert_eq!(as_javascript_reads_it(body), id);
    // Odd, so that rounding changes it: in JavaScript, numbers of this size are multiples of 256.
    let odd = id.parse::<i64>().expect("an id") | 1;
    assert_ne!(as_javascript_reads_it(&format!("{{\"id\": {odd}}}")), odd.to_string());
}
