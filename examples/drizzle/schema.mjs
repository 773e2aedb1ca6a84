// Customers and their orders, with snowflake ids.

import { relations, sql } from 'drizzle-orm';
import { bigint, pgTable, primaryKey, text } from 'drizzle-orm/pg-core';

const snowflake = () => bigint({ mode: 'bigint' }).primaryKey().default(sql`snowflake_next()`);

export const customers = pgTable('customers', {
  id: snowflake(),
  name: text().notNull(),
});

export const orders = pgTable('orders', {
  id: snowflake(),
  customerId: bigint('customer_id', { mode: 'bigint' }).notNull().references(() => customers.id),
  item: text().notNull(),
});

// A junction table needs no id.
export const watchers = pgTable('watchers', {
  orderId: bigint('order_id', { mode: 'bigint' }).notNull().references(() => orders.id),
  customerId: bigint('customer_id', { mode: 'bigint' }).notNull().references(() => customers.id),
}, table => [primaryKey({ columns: [table.orderId, table.customerId] })]);

export const customersRelations = relations(customers, ({ many }) => ({ orders: many(orders) }));
export const ordersRelations = relations(orders, ({ one }) => ({
  customer: one(customers, { fields: [orders.customerId], references: [customers.id] }),
}));
