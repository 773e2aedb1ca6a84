//! The guide on Django: where the keys of whole projects come from. The projects are those of `tests/guides/django`,
//! with the apps that Django brings, `shop` of the example, and `club`, which has each kind of table.

use std::collections::BTreeSet;
use std::fs;

use idgen_testkit::sql::{column, execute, value};
use postgres::Client;

use crate::django_project::{Project, new_database, server};
use crate::{keys, repository};

const AUTO_FIELD: &str = "django.db.models.AutoField";
const BIG_AUTO_FIELD: &str = "django.db.models.BigAutoField";

/// Greater than all values of a sequence here, and smaller than all snowflake ids.
const BETWEEN: i64 = 1 << 40;

/// Tables of Django whose keys are no snowflake ids, in a new project with a user model of its own.
const OF_DJANGO: [&str; 4] = ["auth_group.id", "auth_permission.id", "django_admin_log.id", "django_content_type.id"];

/// The keys of the app `club`. Each of its tables has rows.
fn keys_of_club(client: &mut Client) -> Vec<String> {
    let tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^(club_|Referees)'";
    for table in column::<String>(client, tables) {
        assert!(value::<bool>(client, &format!("SELECT count(*) > 0 FROM {table}")), "{table} is empty");
    }
    let mut keys = keys::of_snowflakes(client);
    keys.retain(|key| key.starts_with("club_") || key.starts_with("\"Referees\""));
    keys
}

#[test]
fn django_new_project_draws_all_keys() {
    let cluster = server("1");
    let mut client = new_database(&cluster);
    let project = Project::with_club();
    project.manage(&cluster, &["makemigrations", "club"]);
    project.manage(&cluster, &["migrate"]);
    keys::assert_clean(&mut client);
    assert_eq!(keys::of_sequences(&mut client), OF_DJANGO);
    project.fill_club(&cluster, "new");
    let keys = keys_of_club(&mut client);
    assert!(keys.contains(&"club_member_groups.id".to_owned()), "{keys:?}");
    for key in keys {
        assert!(keys::smallest(&mut client, &key) > Some(BETWEEN), "{key}");
    }
}

/// Adds to a migration that Django has written what the guide says.
fn add_defaults(project: &Project, migration: &str) {
    let begin = "    operations = [\n";
    let limited =
        format!("{begin}        migrations.RunSQL(\"SET LOCAL lock_timeout = '5s'\", migrations.RunSQL.noop),\n");
    project.edit(migration, begin, &limited);
    add_defaults_of_auth(project, migration, "shop.ids.SnowflakeDefaults(), ");
}

fn add_defaults_of_auth(project: &Project, migration: &str, own: &str) {
    let text = fs::read_to_string(project.path(migration)).expect("a migration");
    let operations = text.strip_suffix("    ]\n").expect("operations at the end");
    let added = format!("{operations}        {own}shop.ids.SnowflakeDefaults(\"auth\"),\n    ]\n");
    fs::write(project.path(migration), added).expect("the migration is writable");
}

#[test]
fn django_project_that_exists_draws_all_keys_after_its_migration() {
    for (field, serial) in [(AUTO_FIELD, false), (AUTO_FIELD, true), (BIG_AUTO_FIELD, false)] {
        let cluster = server("1");
        let mut client = new_database(&cluster);
        let project = Project::with_club();
        project.manage_before(&cluster, field, &["makemigrations", "club"]);
        project.manage_before(&cluster, field, &["migrate", "shop", "0001"]);
        for app in ["club", "admin", "sessions"] {
            project.manage_before(&cluster, field, &["migrate", app]);
        }
        project.fill_club_before(&cluster, field, "old");
        if serial {
            keys::make_serials(&mut client);
        }
        let before = keys::of_sequences(&mut client);
        assert!(keys::of_snowflakes(&mut client).is_empty());
        project.manage(&cluster, &["makemigrations", "club", "-n", "snowflake_ids"]);
        add_defaults(&project, "club/migrations/0002_snowflake_ids.py");
        project.manage(&cluster, &["migrate"]);
        keys::assert_clean(&mut client);
        assert_eq!(keys::of_sequences(&mut client), [&OF_DJANGO[..], &["django_migrations.id"]].concat());
        let changed = keys::of_snowflakes(&mut client);
        assert!(before.iter().all(|key| changed.contains(key) != keys::of_sequences(&mut client).contains(key)));
        let checked = project.manage(&cluster, &["makemigrations", "--check"]);
        assert!(checked.contains("No changes detected"), "{checked}");
        project.fill_club(&cluster, "new");
        let keys = keys_of_club(&mut client);
        for key in &keys {
            let (table, column) = key.rsplit_once('.').expect("a table and a column");
            let sql = format!("SELECT min({column}) < {BETWEEN} AND max({column}) > {BETWEEN} FROM {table}");
            assert!(value::<bool>(&mut client, &sql), "{key}: old rows keep their ids, new ones are snowflake ids");
        }
        // And back: only without rows that have snowflake ids.
        execute(&mut client, "TRUNCATE club_member, club_venue, club_team, club_tag, club_note CASCADE");
        project.manage(&cluster, &["migrate", "club", "0001"]);
        project.fill_club_before(&cluster, field, "back");
        for key in keys {
            assert!(keys::smallest(&mut client, &key).is_some_and(|id| id < BETWEEN), "{key}");
        }
    }
}

/// The field was the `default_auto_field` of the app, which Django does not read for tables of many-to-many fields.
#[test]
fn django_project_of_an_earlier_guide_draws_all_keys_after_an_empty_migration() {
    let cluster = server("1");
    let mut client = new_database(&cluster);
    let project = Project::with_club();
    let name = "    name = 'club'\n";
    let field = format!("{name}    default_auto_field = 'shop.ids.SnowflakeField'\n");
    project.edit("club/apps.py", name, &field);
    project.manage_before(&cluster, BIG_AUTO_FIELD, &["makemigrations", "club"]);
    project.manage_before(&cluster, BIG_AUTO_FIELD, &["migrate", "club"]);
    let of_club = |keys: Vec<String>| keys.into_iter().filter(|key| key.starts_with("club_")).collect::<Vec<_>>();
    let many_to_many = ["match_tags", "member_groups", "member_user_permissions", "team_rivals"];
    let left = many_to_many.map(|table| format!("club_{table}.id"));
    assert_eq!(of_club(keys::of_sequences(&mut client)), left);

    project.edit("club/apps.py", &field, name);
    project.manage(&cluster, &["makemigrations", "club", "--empty", "-n", "snowflake_ids"]);
    let migration = "club/migrations/0002_snowflake_ids.py";
    project.edit(
        migration,
        "from django.db import migrations\n",
        "import shop.ids\nfrom django.db import migrations\n",
    );
    add_defaults(&project, migration);
    project.manage(&cluster, &["migrate"]);
    keys::assert_clean(&mut client);
    assert_eq!(keys::of_sequences(&mut client), [&OF_DJANGO[..], &["django_migrations.id"]].concat());
}

#[test]
fn django_tests_create_the_extension_in_their_database() {
    let cluster = server("1");
    let mut client = new_database(&cluster);
    let project = Project::with_users_of_django();
    fs::write(project.path("shop/tests.py"), TEST_OF_SHOP).expect("the project is writable");
    project.manage(&cluster, &["test"]);
    let extensions = "SELECT count(*) FROM pg_extension WHERE extname = 'idgen'";
    assert_eq!(value::<i64>(&mut client, extensions), 0, "the tests have a database of their own");
}

const TEST_OF_SHOP: &str = "from django.test import TestCase
from shop.models import Customer, Order

class Watchers(TestCase):
    def test_ids(self):
        order = Order.objects.create(customer=Customer.objects.create(name='a'))
        order.watchers.add(order.customer)
        self.assertGreater(Order.watchers.through.objects.get().id, 2**40)
";

/// Readers who paste the blocks of the guide have whole files, and so every name that these use.
#[test]
fn django_guide_shows_whole_files() {
    let page = fs::read_to_string(repository("docs/guides/django.md")).expect("the guide");
    for file in ["shop/ids.py", "shop/apps.py", "shop/migrations/0002_snowflake_ids.py"] {
        let begin = format!("\n```python examples/django/{file}\n");
        let blocks = page.split(&begin).skip(1);
        let shown = blocks.flat_map(|rest| rest.split("\n```").next().unwrap_or_default().lines());
        let text = fs::read_to_string(repository("examples/django").join(file)).expect("a file of the example");
        let is_code = |line: &&str| !line.is_empty();
        let whole: Vec<&str> = text.lines().filter(is_code).collect();
        assert_eq!(shown.filter(is_code).collect::<Vec<_>>(), whole, "{file}");
    }
}

/// The tables that the guide names as those that keep their sequences.
fn tables_of_the_page() -> BTreeSet<String> {
    let page = fs::read_to_string(repository("docs/guides/django.md")).expect("the guide");
    let (_, table) = page.split_once("| table of Django |").expect("the table");
    let cells = table.lines().skip(1).take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1));
    cells.flat_map(|cell| cell.unwrap_or_default().split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn django_guide_names_the_tables_that_keep_their_sequences() {
    let named = tables_of_the_page();
    let tables = |client: &mut Client| -> BTreeSet<String> {
        keys::of_sequences(client).iter().map(|key| key.trim_end_matches(".id").to_owned()).collect()
    };
    let cluster = server("1");
    let mut client = new_database(&cluster);
    let project = Project::with_users_of_django();
    project.manage(&cluster, &["migrate"]);
    let mut of_new_projects = named.clone();
    assert!(of_new_projects.remove("django_migrations"));
    assert_eq!(tables(&mut client), of_new_projects);
    assert!(keys::of_snowflakes(&mut client).contains(&"auth_user_groups.id".to_owned()));

    drop(client);
    cluster.execute("DROP DATABASE shop");
    let mut client = new_database(&cluster);
    project.manage_before(&cluster, BIG_AUTO_FIELD, &["migrate", "shop", "0001"]);
    project.manage_before(&cluster, BIG_AUTO_FIELD, &["migrate", "admin"]);
    let migration = "shop/migrations/0002_snowflake_ids.py";
    project.edit(migration, "\"0001_initial\")]", "\"0001_initial\"), (\"auth\", \"__first__\")]");
    add_defaults_of_auth(&project, migration, "");
    project.manage(&cluster, &["migrate"]);
    keys::assert_clean(&mut client);
    assert_eq!(tables(&mut client), named);
}

/// Copies the rows of a table from one server to the other.
fn copy(from: &mut Client, to: &mut Client, table: &str) {
    let mut rows = Vec::new();
    let mut reader = from.copy_out(&format!("COPY {table} TO STDOUT")).expect("COPY begins");
    std::io::copy(&mut reader, &mut rows).expect("rows");
    drop(reader);
    let mut writer = to.copy_in(&format!("COPY {table} FROM STDIN")).expect("COPY begins");
    std::io::copy(&mut &rows[..], &mut writer).expect("rows");
    writer.finish().unwrap_or_else(|error| panic!("rows of {table} collide: {error:?}"));
}

#[test]
fn django_rows_of_two_servers_do_not_collide() {
    let [first, second] = ["1", "2"].map(server);
    let [mut on_first, mut on_second] = [&first, &second].map(new_database);
    let project = Project::with_club();
    project.manage(&first, &["makemigrations", "club"]);
    project.manage(&first, &["migrate"]);
    // The second server has the tables of Django, and gets their rows from the first before its own migration.
    project.manage(&second, &["migrate", "auth"]);
    execute(&mut on_second, "TRUNCATE django_content_type, auth_permission CASCADE");
    for table in ["django_content_type", "auth_permission"] {
        copy(&mut on_first, &mut on_second, table);
    }
    project.manage(&second, &["migrate"]);
    for row in ["django_content_type AS t", "auth_permission AS t"] {
        let sql = format!("SELECT string_agg(t::text, ' ' ORDER BY id) FROM {row}");
        assert_eq!(value::<String>(&mut on_first, &sql), value::<String>(&mut on_second, &sql), "{row}");
    }
    project.fill_club(&first, "first");
    project.fill_club(&second, "second");
    execute(&mut on_first, "SET session_replication_role = replica");
    let tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^(club_|Referees)'";
    for table in column::<String>(&mut on_first, tables) {
        copy(&mut on_second, &mut on_first, &table);
        let sql = format!("SELECT count(*) FROM {table}");
        let rows = [&mut on_first, &mut on_second].map(|client| value::<i64>(client, &sql));
        assert_eq!(rows[0], 2 * rows[1], "{table}");
    }
}
