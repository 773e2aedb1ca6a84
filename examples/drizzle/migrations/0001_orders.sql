CREATE TABLE "customers" (
	"id" bigint PRIMARY KEY DEFAULT snowflake_next() NOT NULL,
	"name" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "orders" (
	"id" bigint PRIMARY KEY DEFAULT snowflake_next() NOT NULL,
	"customer_id" bigint NOT NULL,
	"item" text NOT NULL
);
--> statement-breakpoint
ALTER TABLE "orders" ADD CONSTRAINT "orders_customer_id_customers_id_fk" FOREIGN KEY ("customer_id") REFERENCES "public"."customers"("id") ON DELETE no action ON UPDATE no action;