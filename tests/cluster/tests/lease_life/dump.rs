//! Dumps: what is laid down goes along; nobody holds anything where one is restored, and no token comes again there.

use idgen_cluster_tests::sql::{execute, value};

use crate::{acquire, assert_held, builder, try_acquire};

#[test]
fn a_restored_database_has_the_definitions_and_no_terms() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(
        &mut client,
        "CREATE ROLE definer;
         GRANT EXECUTE ON FUNCTION lease_define TO definer;
         SET ROLE definer;
         SELECT lease_define('a', slots => 3, ttl => '5 min', lock_delay => '7 s');
         RESET ROLE;
         CREATE TABLE guarded (n int);
         CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('a')",
    );
    let token = acquire(&mut client, "'a', ttl => '1 day'");
    execute(&mut client, &format!("BEGIN; SELECT lease_fence('a', {token}); INSERT INTO guarded VALUES (1); COMMIT"));
    acquire(&mut client, "'bound', bind_session => true");

    let file = cluster.data_dir().with_file_name("dump.sql");
    let run = |program: &str, options: [&str; 3]| {
        let output = cluster.program(program).args(options).arg("-f").arg(&file).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("pg_dump", ["-d", "postgres", "--no-comments"]);
    let highest = acquire(&mut client, "'a', ttl => '1 day'");
    cluster.execute("CREATE DATABASE restored");
    run("psql", ["-d", "restored", "--set=ON_ERROR_STOP=1"]);

    let mut restored = cluster.client_in("restored");
    let definition = "SELECT definition::text FROM idgen.lease_definition AS definition";
    let laid_down: String = value(&mut client, definition);
    assert_eq!(value::<String>(&mut restored, definition), laid_down);
    assert!(laid_down.contains("(a,3,00:05:00,00:00:07,definer)"), "{laid_down}");
    assert_eq!(value::<i64>(&mut restored, "SELECT count(*) FROM idgen.lease"), 0);
    assert_eq!(value::<i32>(&mut restored, "SELECT n FROM guarded"), 1);
    // One database's tokens and holders are nothing to another one, also where the names are the same.
    for name in ["a", "bound"] {
        let next = try_acquire(&mut restored, name).expect("nobody holds it there");
        assert!(next > highest, "{name}: {next} after {highest}");
    }
    assert_held(&mut client, "bound");
    assert_held(&mut restored, "bound");
}
