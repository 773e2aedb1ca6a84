// The cases of the guide on JSON.

import assert from 'node:assert/strict';
import { fromJson, parseExactly, parseWithSource, toJson, toNumber } from '../examples/javascript/json.mjs';
import { findOrder, insertOrders, newCart, newOrder, ordersAsJson, pool } from '../examples/javascript/orders.mjs';

const digits = '2124489393384195693';

const cases = {
  async texts() {
    const order = { id: BigInt(digits), customerId: 7n, item: 'tea', lines: [{ order_id: BigInt(digits) }], paid: null };
    const text = toJson(order);
    assert.equal(text, `{"id":"${digits}","customerId":"7","item":"tea","lines":[{"order_id":"${digits}"}],"paid":null}`);
    assert.deepEqual(fromJson(text), order);
    assert.throws(() => JSON.stringify(order), TypeError);
    const others = { id: '', orderId: '0x10', order_id: ' 7 ', customerId: 'ord_jSvceAeDoUz' };
    assert.deepEqual(fromJson(JSON.stringify(others)), others);
    assert.deepEqual(fromJson('{"id": "-7"}'), { id: -7n });
  },

  async numbers() {
    const text = `{"id": ${digits}, "note": "say \\"${digits}\\" 1", "list": [-${digits}, 12, 0.12345678901234567, 1e300]}`;
    const expected = { id: digits, note: `say "${digits}" 1`, list: [`-${digits}`, 12, 0.12345678901234567, 1e300] };
    assert.deepEqual(parseExactly(text), expected);
    assert.notEqual(BigInt(JSON.parse(text).id), BigInt(digits));
    assert.deepEqual(parseExactly('9007199254740991'), '9007199254740991');
    assert.deepEqual(parseExactly('{"1234567890123456789": [[]]}'), { '1234567890123456789': [[]] });
  },

  // A reviver of an engine that does not pass the source gets the rounded number only.
  async source() {
    let passed = false;
    JSON.parse('1', (key, field, context) => { passed = context !== undefined; return field; });
    const parse = () => parseWithSource(`{"id": ${digits}, "count": 12}`);
    if (passed) {
      assert.deepEqual(parse(), { id: BigInt(digits), count: 12 });
    } else {
      assert.throws(parse, TypeError);
    }
    console.log(passed);
  },

  async orders() {
    const { id } = JSON.parse(await newOrder('tea'));
    assert.equal(typeof id, 'string');
    assert.deepEqual(await findOrder(id), { id, item: 'tea' });
    assert.deepEqual(await findOrder(BigInt(id)), { id, item: 'tea' });
    await pool.query('TRUNCATE orders');
    await pool.query('INSERT INTO orders VALUES ($1, $2)', [digits, 'milk']);
    assert.deepEqual(await ordersAsJson(), [{ id: digits, item: 'milk' }]);
    assert.equal(await findOrder(Number(digits)), undefined);
  },

  async many() {
    const ids = await insertOrders(Array.from({ length: 1000 }, (_, n) => `item ${n}`));
    console.log(ids.join('\n'));
  },

  async js53() {
    const id = await newCart('Ada');
    assert.ok(Number.isSafeInteger(id));
    const { rows } = await pool.query('SELECT owner FROM carts WHERE id = $1', [JSON.parse(JSON.stringify({ id })).id]);
    assert.deepEqual(rows, [{ owner: 'Ada' }]);
    assert.throws(() => toNumber(digits), RangeError);
  },
};

await cases[process.argv[2]]();
await pool.end();
