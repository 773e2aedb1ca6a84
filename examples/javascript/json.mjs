// JSON with ids that are exact. Plain JavaScript, for browsers and for Node.js.

/** Writes each BigInt as a text. JSON.stringify alone throws a TypeError. */
export function toJson(value) {
  return JSON.stringify(value, (key, field) => (typeof field === 'bigint' ? field.toString() : field));
}

/** Reads the texts under the names of ids as BigInt: id, customerId, customer_id. Leaves texts that are no decimals. */
export function fromJson(text) {
  const isId = key => /^id$|Id$|_id$/.test(key);
  const isNumber = field => typeof field === 'string' && /^-?\d+$/.test(field);
  return JSON.parse(text, (key, field) => (isId(key) && isNumber(field) ? BigInt(field) : field));
}

/** Reads JSON in which ids are numbers, such as results of PostgreSQL. Integers of 16 digits and more become texts. */
export function parseExactly(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  return JSON.parse(text.replace(token, part => (/^-?\d{16,}$/.test(part) ? `"${part}"` : part)));
}

/** The same by a reviver, in engines that pass it the source of a number. Such integers become BigInt. */
export function parseWithSource(text) {
  return JSON.parse(text, (key, field, context) =>
    typeof field === 'number' && /^-?\d{16,}$/.test(context.source) ? BigInt(context.source) : field);
}

/** Reads a bigint of PostgreSQL as a number, for tables in layout js53. Throws instead of rounding. */
export function toNumber(text) {
  const number = Number(text);
  if (!Number.isSafeInteger(number)) {
    throw new RangeError(`${text} is not exact as a number`);
  }
  return number;
}
