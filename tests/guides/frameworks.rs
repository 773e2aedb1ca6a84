//! What the guides on Python's frameworks share: programs that connect to a server, and the statements that they ran.

use std::process::Command;

use idgen_testkit::sql::execute;
use idgen_testkit::{Cluster, run};
use postgres::Client;

use crate::{repository, tools};

/// Python with the packages of `requirements.txt`, in a directory of the repository. It connects to this database.
pub fn python(cluster: &Cluster, database: &str, user: &str, directory: &str) -> Command {
    let mut command = Command::new(tools().join("python/bin/python"));
    command.current_dir(repository(directory)).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PGHOST", cluster.host()).env("PGPORT", cluster.port());
    command.env("PGDATABASE", database).env("PGUSER", user);
    command
}

/// The statements that cases ran.
pub struct Counted(String);

/// Runs cases of a program of this directory, as the superuser, who may reset the statistics of statements.
pub fn run_cases(command: &mut Command, program: &str, cases: &[&str]) -> Counted {
    let program = repository("tests/guides").join(program);
    Counted(run(command.arg(program).args(cases)))
}

impl Counted {
    /// How often a case ran statements that begin like this.
    pub fn calls(&self, case: &str, beginning: &str) -> i64 {
        let calls = |line: &str| {
            let mut fields = line.split('\t');
            let (name, calls, query) = (fields.next()?, fields.next()?, fields.next()?);
            (name == case && query.starts_with(beginning)).then(|| calls.parse::<i64>().expect("a number of calls"))
        };
        assert!(self.0.lines().any(|line| line.starts_with(&format!("{case}\t"))), "no case {case} in {}", self.0);
        self.0.lines().filter_map(calls).sum()
    }
}

/// A superuser's session in a new database that belongs to the role `app`, in which statements are counted.
pub fn database_of_app(cluster: &Cluster, name: &str) -> Client {
    let create_role = "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    cluster.execute(create_role);
    cluster.execute(&format!("CREATE DATABASE {name} OWNER app"));
    let mut client = cluster.client_in(name);
    execute(&mut client, "CREATE EXTENSION pg_stat_statements; GRANT CREATE ON SCHEMA public TO app");
    client
}

/// The property `id` of a JSON object, as JavaScript prints it.
pub fn as_javascript_reads_it(json: &str) -> String {
    let script = "console.log(String(JSON.parse(process.argv[1]).id))";
    run(Command::new("node").args(["-e", script, json])).trim_end().to_owned()
}
