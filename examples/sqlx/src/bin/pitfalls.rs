//! What does not work: an id as `i32`, NULL without an `Option`, and infinity as chrono's type.

use std::env;

use sqlx::types::chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), sqlx::Error> {
    let url = env::var("DATABASE_URL").expect("DATABASE_URL is postgres://user@host/database");
    let mut connection = PgConnection::connect(&url).await?;
    match env::args().nth(1).as_deref() {
        Some("i32") => {
            let id: i32 = sqlx::query_scalar("SELECT snowflake_next()").fetch_one(&mut connection).await?;
            println!("{id}");
        }
        Some("null") => {
            let sql = "SELECT expires_at FROM lease_acquire('nightly', bind_session => true)";
            let expires: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
            println!("{expires}");
        }
        Some("infinity") => {
            let sql = "SELECT ends_at FROM snowflake_layout('time:62 sequence:1 epoch:2020-01-01')";
            let ends: DateTime<Utc> = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
            println!("{ends}");
        }
        other => panic!("i32, null or infinity, not {other:?}"),
    }
    Ok(())
}
