//! A row of the view `idgen.checks`. Each room has a function that returns its own; `admin` collects them.

use crate::pg::ereport::Report;

/// What a check that fails means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Draws, acquisitions or settled reads fail, or a promise may be broken.
    Error,
    /// They still succeed. They wait, are ahead of the clock, or will fail unless somebody acts.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

pub struct Check {
    pub name: &'static str,
    /// `None` if the check succeeds.
    pub severity: Option<Severity>,
    pub message: String,
    /// When it began to fail, in milliseconds since 1970; `None` if that is not known.
    pub since_ms: Option<i64>,
    /// The segments, leases, pools or kinds of ids that it is about.
    pub affects: Option<String>,
    /// What to do.
    pub action: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, severity: None, message: message.into(), since_ms: None, affects: None, action: None }
    }

    pub fn error(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self { severity: Some(Severity::Error), action: Some(action.into()), ..Self::ok(name, message) }
    }

    pub fn warning(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self { severity: Some(Severity::Warning), ..Self::error(name, message, action) }
    }

    /// For a state in which calls raise this error.
    pub fn raising(name: &'static str, report: Report) -> Self {
        let (message, hint) = report.into_texts();
        Self::error(name, message, hint)
    }

    pub fn since_ms(self, since_ms: Option<i64>) -> Self {
        Self { since_ms, ..self }
    }

    pub fn affects(self, what: impl Into<String>) -> Self {
        Self { affects: Some(what.into()), ..self }
    }
}

/// The first five names, and how many more there are.
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}
