// The cases of the guide on Knex. Prints the ids in the order in which the rows were given.

import assert from 'node:assert/strict';
import { draw, findOrder, insertManyOrders, insertOrders, knex } from '../examples/knex/orders.mjs';

const items = length => Array.from({ length }, (_, n) => `item ${n}`);

const cases = {
  async migrate() {
    await knex.migrate.latest();
  },

  async insert() {
    console.log((await insertOrders(items(1000))).join('\n'));
  },

  async batch() {
    console.log((await insertManyOrders(items(5000))).join('\n'));
  },

  async drawn() {
    const ids = await draw(1000);
    await knex('orders').insert(items(1000).map((item, n) => ({ id: ids[n], item })));
    console.log(ids.join('\n'));
  },

  async ids() {
    const id = '2124489393384195693';
    await knex('orders').insert({ id, item: 'tea' });
    assert.deepEqual(await findOrder(id), { id, item: 'tea' });
    assert.deepEqual(await findOrder(BigInt(id)), { id, item: 'tea' });
    assert.equal(await findOrder(Number(id)), undefined);
    const { rows } = await knex.raw('SELECT to_json(o) AS found FROM orders AS o');
    assert.notEqual(BigInt(rows[0].found.id), BigInt(id));
  },

  async increments() {
    await knex.schema.createTable('habit', table => {
      table.bigIncrements();
    });
  },

  async tooMany() {
    await assert.rejects(insertOrders(items(65536)), { code: '08P01' });
  },
};

await cases[process.argv[2]]();
await knex.destroy();
