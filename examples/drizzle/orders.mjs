// Inserts and reads the tables of schema.mjs.

import { sql } from 'drizzle-orm';
import { db } from './db.mjs';
import { customers, orders } from './schema.mjs';

/** Inserts customers. The default draws the ids, which come back in the order of the names. */
export async function insertCustomers(names) {
  const rows = await db.insert(customers).values(names.map(name => ({ name }))).returning({ id: customers.id });
  return rows.map(row => row.id);
}

/** Draws ids that no other session gets. */
export async function draw(count) {
  const { rows } = await db.execute(sql`SELECT id FROM snowflake_next_many(${count}) AS id`);
  return rows.map(row => BigInt(row.id));
}

/** Inserts customers with their orders: one draw, and one statement for each table. */
export async function insertWithOrders(given) {
  const ids = await draw(given.length);
  const parents = given.map(({ name }, n) => ({ id: ids[n], name }));
  const children = given.flatMap(({ items }, n) => items.map(item => ({ customerId: ids[n], item })));
  await db.transaction(async transaction => {
    await transaction.insert(customers).values(parents);
    await transaction.insert(orders).values(children);
  });
  return ids;
}

/** All customers with their orders. */
export function customersWithOrders() {
  return db.query.customers.findMany({ with: { orders: true } });
}
