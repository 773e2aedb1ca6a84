// The extension, and a table with snowflake ids.

export async function up(knex) {
  await knex.raw('CREATE EXTENSION IF NOT EXISTS idgen');
  await knex.schema.createTable('orders', table => {
    table.bigint('id').primary().defaultTo(knex.raw('snowflake_next()'));
    table.text('item').notNullable();
  });
}

export async function down(knex) {
  await knex.schema.dropTable('orders');
}
