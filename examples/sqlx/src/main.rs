//! Snowflake ids with sqlx. Runs one of the ways of the guide, and prints what it gets: returning, drawn, lease.

use std::env;

use sqlx::types::chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

/// Inserts the items in one statement. The default draws the ids, which come back in the order of the items.
async fn insert_returning(connection: &mut PgConnection, items: &[String]) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO orders (item)
         SELECT item FROM unnest($1::text[]) WITH ORDINALITY AS given(item, n) ORDER BY n
         RETURNING id",
    )
    .bind(items)
    .fetch_all(connection)
    .await
}

/// Draws ids that no other session gets.
async fn draw(connection: &mut PgConnection, count: usize) -> Result<Vec<i64>, sqlx::Error> {
    let count = i32::try_from(count).expect("a count of rows in memory");
    sqlx::query_scalar("SELECT id FROM snowflake_next_many($1) AS id").bind(count).fetch_all(connection).await
}

/// Inserts the items under ids that are known before.
async fn insert_drawn(connection: &mut PgConnection, items: &[String]) -> Result<Vec<i64>, sqlx::Error> {
    let ids = draw(connection, items.len()).await?;
    sqlx::query("INSERT INTO orders (id, item) SELECT * FROM unnest($1::bigint[], $2::text[])")
        .bind(&ids)
        .bind(items)
        .execute(connection)
        .await?;
    Ok(ids)
}

/// Acquires a lease that ends with the session. Its token, and when it expires, which is `None`.
async fn acquire(connection: &mut PgConnection) -> Result<(i64, Option<DateTime<Utc>>), sqlx::Error> {
    let sql = "SELECT token, expires_at FROM lease_acquire('nightly', bind_session => true)";
    sqlx::query_as(sql).fetch_one(connection).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), sqlx::Error> {
    let url = env::var("DATABASE_URL").expect("DATABASE_URL is postgres://user@host/database");
    let mut connection = PgConnection::connect(&url).await?;
    let items: Vec<String> = (0..1000).map(|n| format!("item {n}")).collect();
    let ids = match env::args().nth(1).as_deref() {
        Some("returning") => insert_returning(&mut connection, &items).await?,
        Some("drawn") => insert_drawn(&mut connection, &items).await?,
        Some("lease") => {
            let (token, expires) = acquire(&mut connection).await?;
            println!("{token} {expires:?}");
            return Ok(());
        }
        other => panic!("returning, drawn or lease, not {other:?}"),
    };
    for id in ids {
        println!("{id}");
    }
    Ok(())
}
