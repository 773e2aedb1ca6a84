//! The guide on Django, with the project in `examples/django`: `ids.py`, `apps.py`, `models.py`, the migration
//! `0002_snowflake_ids.py`, `views.py` and `order.html`.

use std::process::Command;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{column, execute, ids, value};
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::counting::counting_cluster;
use crate::frameworks::{Counted, as_javascript_reads_it, database_of_app, python, run_cases};

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

/// Rows from before the migration, for a table whose key is an identity, and as Django made it before 4.1.
fn insert_old_rows(client: &mut Client, serial: bool) {
    if serial {
        for table in ["shop_customer", "shop_order"] {
            execute(
                client,
                &format!(
                    "SET ROLE app; ALTER TABLE {table} ALTER COLUMN id DROP IDENTITY;
                     CREATE SEQUENCE {table}_id_seq AS integer OWNED BY {table}.id;
                     ALTER TABLE {table} ALTER COLUMN id SET DEFAULT nextval('{table}_id_seq'); RESET ROLE"
                ),
            );
        }
    }
    execute(client, "INSERT INTO shop_customer (name) SELECT 'old' FROM generate_series(1, 3)");
    execute(client, "INSERT INTO shop_order (customer_id) SELECT id FROM shop_customer");
}

/// The types and defaults of the keys, and the sequences.
fn keys(client: &mut Client) -> Vec<String> {
    column(
        client,
        "SELECT concat_ws(' ', table_name, column_name, data_type, column_default, identity_generation)
         FROM information_schema.columns
         WHERE column_name IN ('id', 'customer_id') AND table_name IN ('shop_customer', 'shop_order', 'shop_item')
         UNION ALL
         SELECT sequencename FROM pg_sequences WHERE sequencename LIKE 'shop%' ORDER BY 1",
    )
}

#[test]
fn django_migration_converts_tables_that_exist() {
    let cluster = counting_cluster();
    for serial in [false, true] {
        let database = if serial { "serial" } else { "identity" };
        let mut client = database_of_app(&cluster, database);
        execute(&mut client, "CREATE EXTENSION idgen");
        let migrate = |to: &[&str]| run(&mut manage(&cluster, database, &[&["migrate"], to].concat()));
        migrate(&["shop", "0001"]);
        insert_old_rows(&mut client, serial);
        migrate(&[]);
        let converted = [
            "shop_customer id bigint snowflake_next()",
            "shop_item id bigint snowflake_next()",
            "shop_order customer_id bigint",
            "shop_order id bigint snowflake_next()",
        ];
        assert_eq!(keys(&mut client), converted);
        execute(&mut client, "INSERT INTO shop_customer (name) VALUES ('new')");
        execute(&mut client, "INSERT INTO shop_order (customer_id) SELECT max(id) FROM shop_customer");
        let orders = ids(&mut client, "SELECT id FROM shop_order ORDER BY id");
        assert_eq!(orders[..3], [1, 2, 3]);
        assert_increasing(&orders);
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
        execute(&mut client, "DELETE FROM shop_order WHERE id > 3; DELETE FROM shop_customer WHERE id > 3");
        execute(&mut client, "SELECT segment_create('kept')");
        migrate(&["shop", "0001"]);
        let sql = "INSERT INTO shop_order (customer_id) VALUES (1) RETURNING id";
        assert_eq!(value::<i32>(&mut client, sql), 4);
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
fn django_default_auto_field_needs_the_extension_before_the_first_migration() {
    let cluster = counting_cluster();
    database_of_app(&cluster, "bare");
    let script = "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'settings'
import settings; settings.DEFAULT_AUTO_FIELD = 'shop.ids.SnowflakeField'
from django.core.management import execute_from_command_line as execute
execute(['manage.py', 'migrate'])";
    let output = python(&cluster, "bare", "postgres", DIRECTORY).args(["-c", script]).output().expect("Python runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Unable to create the django_migrations table"), "{errors}");
    // With the field of the app, the first migration can create the extension.
    let mut command = python(&cluster, "bare", "postgres", DIRECTORY);
    run(command.args(["manage.py", "migrate"]));
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
