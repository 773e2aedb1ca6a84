//! Projects of Django in directories of their own, made as the guide says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use idgen_testkit::{Cluster, run};
use postgres::Client;
use tempfile::TempDir;

use crate::frameworks::{database_of_app, python};
use crate::{repository, tools};

/// A project in a directory of its own, where Django writes migrations.
pub struct Project {
    dir: TempDir,
    settings: &'static str,
}

impl Project {
    /// The example with the apps that Django brings.
    pub fn with_users_of_django() -> Project {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for source in
            ["examples/django/.", "tests/guides/django/contrib_settings.py", "tests/guides/django/club_settings.py"]
        {
            run(Command::new("cp").arg("-r").arg(repository(source)).arg(dir.path()));
        }
        Project { dir, settings: "contrib_settings" }
    }

    /// The same with the app `club`.
    pub fn with_club() -> Project {
        let mut project = Project::with_users_of_django();
        run(Command::new(tools().join("python/bin/django-admin"))
            .args(["startapp", "club"])
            .current_dir(project.dir.path()));
        fs::copy(repository("tests/guides/django/models.py"), project.path("club/models.py")).expect("the app exists");
        // As the guide says.
        let made = "    default_auto_field = 'django.db.models.BigAutoField'\n";
        project.edit("club/apps.py", made, "");
        project.settings = "club_settings";
        project
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Replaces a text that a file has once.
    pub fn edit(&self, path: impl AsRef<Path>, from: &str, to: &str) {
        let path = self.path(path);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {}: {text}", path.display());
        fs::write(&path, text.replace(from, to)).expect("the file is writable");
    }

    /// A program of the project, in the database `shop`.
    fn python(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let mut command = python(cluster, "shop", "postgres", "examples/django");
        command.current_dir(self.dir.path()).env("DJANGO_SETTINGS_MODULE", self.settings).args(arguments);
        command
    }

    /// Runs `manage.py`, as the guide has it.
    pub fn manage(&self, cluster: &Cluster, arguments: &[&str]) -> String {
        run(self.python(cluster, &["manage.py"]).args(arguments))
    }

    /// Runs `manage.py` of the time before, with this field.
    pub fn manage_before(&self, cluster: &Cluster, field: &str, arguments: &[&str]) {
        run(self.python(cluster, &["manage.py"]).args(arguments).env("AUTO_FIELD", field));
    }

    /// Adds rows to all tables of the app `club`.
    pub fn fill_club(&self, cluster: &Cluster, name: &str) {
        run(&mut self.filling(cluster, name));
    }

    pub fn fill_club_before(&self, cluster: &Cluster, field: &str, name: &str) {
        run(self.filling(cluster, name).env("AUTO_FIELD", field));
    }

    fn filling(&self, cluster: &Cluster, name: &str) -> Command {
        let mut command = self.python(cluster, &[]);
        command.arg(repository("tests/guides/django/fill.py")).arg(name);
        command
    }
}

pub fn new_database(cluster: &Cluster) -> Client {
    database_of_app(cluster, "shop")
}

/// A server with this worker id.
pub fn server(worker_id: &str) -> Cluster {
    let preloaded = "idgen,pg_stat_statements";
    let builder = Cluster::builder().conf("shared_preload_libraries", preloaded).conf("fsync", "off");
    builder.conf("idgen.worker_id", worker_id).new_system_identifier().start()
}
