// Runs the migrations.

import { fileURLToPath } from 'node:url';
import { migrate } from 'drizzle-orm/node-postgres/migrator';
import { db, pool } from './db.mjs';

await migrate(db, { migrationsFolder: fileURLToPath(new URL('migrations', import.meta.url)) });
await pool.end();
