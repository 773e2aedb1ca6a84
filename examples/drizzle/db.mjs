// The database of the example. DATABASE_URL says where it is.

import { drizzle } from 'drizzle-orm/node-postgres';
import pg from 'pg';
import { parseExactly } from '../javascript/json.mjs';
import * as schema from './schema.mjs';

// Relational queries fetch nested rows as json. Without these lines JSON.parse rounds their ids.
pg.types.setTypeParser(pg.types.builtins.JSON, parseExactly);
pg.types.setTypeParser(pg.types.builtins.JSONB, parseExactly);

export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
export const db = drizzle(pool, { schema });
