// The extension, and tables with snowflake ids.

export async function up(knex) {
  // Instead of table.increments() and table.bigIncrements(), which draw from a sequence.
  const snowflake = table => table.bigint('id').primary().defaultTo(knex.raw('snowflake_next()'));

  await knex.raw('CREATE EXTENSION IF NOT EXISTS idgen');
  await knex.schema.createTable('orders', table => {
    snowflake(table);
    table.text('item').notNullable();
  });
  await knex.schema.createTable('customers', table => {
    snowflake(table);
    table.text('name').notNullable();
  });
  // A junction table needs no id.
  await knex.schema.createTable('customers_orders', table => {
    table.bigint('customer_id').references('customers.id');
    table.bigint('order_id').references('orders.id');
    table.primary(['customer_id', 'order_id']);
  });
}

export async function down(knex) {
  await knex.schema.dropTable('customers_orders');
  await knex.schema.dropTable('customers');
  await knex.schema.dropTable('orders');
}
