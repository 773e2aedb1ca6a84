// The cases of the guide on Drizzle. Prints the ids in the order in which the rows were given.

import assert from 'node:assert/strict';
import { asc, eq } from 'drizzle-orm';
import { bigint, pgTable, text } from 'drizzle-orm/pg-core';
import pg from 'pg';
import { db, pool } from '../examples/drizzle/db.mjs';
import { customersWithOrders, insertCustomers, insertWithOrders } from '../examples/drizzle/orders.mjs';
import { customers, orders } from '../examples/drizzle/schema.mjs';

const names = Array.from({ length: 1000 }, (_, n) => `customer ${n}`);
// Odd, so that rounding changes it: numbers of this size are multiples of 128 or 256.
const odd = 2124489393384195693n;

const cases = {
  async insert() {
    const ids = await insertCustomers(names);
    console.log(ids.join('\n'));
  },

  async drawn() {
    const ids = await insertWithOrders(names.map(name => ({ name, items: ['tea', 'milk'] })));
    console.log(ids.join('\n'));
  },

  async relations() {
    await db.insert(customers).values({ id: odd, name: 'Ada' });
    await db.insert(orders).values({ id: odd + 2n, customerId: odd, item: 'tea' });
    const exact = [{ id: odd, name: 'Ada', orders: [{ id: odd + 2n, customerId: odd, item: 'tea' }] }];
    assert.deepEqual(await customersWithOrders(), exact);
    // What the driver does unless the example tells it otherwise.
    pg.types.setTypeParser(pg.types.builtins.JSON, JSON.parse);
    const [{ id, orders: [rounded] }] = await customersWithOrders();
    assert.equal(id, odd);
    assert.notEqual(rounded.id, odd + 2n);
    assert.notEqual(rounded.customerId, odd);
  },

  async numbers() {
    await db.insert(customers).values({ id: odd, name: 'Ada' });
    const asNumbers = pgTable('customers', { id: bigint({ mode: 'number' }).primaryKey(), name: text() });
    const [{ id }] = await db.select().from(asNumbers).orderBy(asc(asNumbers.id));
    assert.notEqual(BigInt(id), odd);
    assert.deepEqual(await db.select().from(asNumbers).where(eq(asNumbers.id, id)), []);
    assert.equal((await db.select().from(customers).where(eq(customers.id, odd))).length, 1);
    assert.throws(() => JSON.stringify({ id: odd }), TypeError);
  },
};

await cases[process.argv[2]]();
await pool.end();
