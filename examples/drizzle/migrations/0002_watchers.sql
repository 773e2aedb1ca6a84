CREATE TABLE "watchers" (
	"order_id" bigint NOT NULL,
	"customer_id" bigint NOT NULL,
	CONSTRAINT "watchers_order_id_customer_id_pk" PRIMARY KEY("order_id","customer_id")
);
--> statement-breakpoint
ALTER TABLE "watchers" ADD CONSTRAINT "watchers_order_id_orders_id_fk" FOREIGN KEY ("order_id") REFERENCES "public"."orders"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "watchers" ADD CONSTRAINT "watchers_customer_id_customers_id_fk" FOREIGN KEY ("customer_id") REFERENCES "public"."customers"("id") ON DELETE no action ON UPDATE no action;