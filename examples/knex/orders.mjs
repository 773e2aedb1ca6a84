// Inserts and reads orders. DATABASE_URL says where the database is.

import { fileURLToPath } from 'node:url';
import makeKnex from 'knex';

export const knex = makeKnex({
  client: 'pg',
  connection: process.env.DATABASE_URL,
  migrations: { directory: fileURLToPath(new URL('migrations', import.meta.url)), loadExtensions: ['.mjs'] },
});

/** Inserts orders in one statement. Their ids are texts, in the order of the items. */
export async function insertOrders(items) {
  const rows = await knex('orders').insert(items.map(item => ({ item }))).returning('id');
  return rows.map(row => row.id);
}

/** Inserts any number of orders in one transaction, 1000 in each statement. */
export async function insertManyOrders(items) {
  const rows = await knex.batchInsert('orders', items.map(item => ({ item })), 1000).returning('id');
  return rows.map(row => row.id);
}

/** Draws ids that no other session gets. */
export async function draw(count) {
  const { rows } = await knex.raw('SELECT id FROM snowflake_next_many(?) AS id', [count]);
  return rows.map(row => row.id);
}

/** An order, by its id as a text or a BigInt. */
export function findOrder(id) {
  return knex('orders').where({ id }).first();
}
