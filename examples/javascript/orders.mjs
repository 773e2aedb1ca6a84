// Orders with snowflake ids over node-postgres, and carts in layout js53. DATABASE_URL says where the database is.

import pg from 'pg';
import { parseExactly, toJson, toNumber } from './json.mjs';

// Reads json and jsonb exactly: for all connections of the program.
const { JSON: json, JSONB: jsonb, INT8: bigint } = pg.types.builtins;
pg.types.setTypeParser(json, parseExactly);
pg.types.setTypeParser(jsonb, parseExactly);

export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });

/** The body of a response: its ids are texts, as node-postgres returns them. */
export async function newOrder(item) {
  const { rows } = await pool.query('INSERT INTO orders (item) VALUES ($1) RETURNING id, item', [item]);
  return toJson(rows[0]);
}

/** Finds an order by the text of its id. */
export async function findOrder(id) {
  const { rows } = await pool.query('SELECT id, item FROM orders WHERE id = $1', [id]);
  return rows[0];
}

/** Inserts all items in one statement. Returns the ids in the order of the items. */
export async function insertOrders(items) {
  const { rows } = await pool.query(
    `INSERT INTO orders (item)
     SELECT item FROM unnest($1::text[]) WITH ORDINALITY AS given(item, n) ORDER BY n
     RETURNING id`,
    [items]
  );
  return rows.map(row => row.id);
}

/** All orders as one json result. */
export async function ordersAsJson() {
  const { rows } = await pool.query('SELECT json_agg(o ORDER BY id) AS orders FROM orders AS o');
  return rows[0].orders;
}

/** A table in layout js53: its ids are numbers, in this query only. */
export async function newCart(owner) {
  const { rows } = await pool.query({
    text: 'INSERT INTO carts (owner) VALUES ($1) RETURNING id',
    values: [owner],
    types: { getTypeParser: (type, format) => (type === bigint ? toNumber : pg.types.getTypeParser(type, format)) },
  });
  return rows[0].id;
}
