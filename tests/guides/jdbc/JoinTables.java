import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.persistence.ElementCollection;
import javax.persistence.Entity;
import javax.persistence.GeneratedValue;
import javax.persistence.Id;
import javax.persistence.Inheritance;
import javax.persistence.InheritanceType;
import javax.persistence.JoinTable;
import javax.persistence.ManyToMany;
import javax.persistence.OneToMany;
import javax.persistence.OrderColumn;
import org.hibernate.cfg.Configuration;
import org.hibernate.dialect.PostgreSQLDialect;

@Entity
@Inheritance(strategy = InheritanceType.JOINED)
class Customer {
    @Id Long id;
    @ElementCollection List<String> notes;
    @ElementCollection @OrderColumn List<String> phones;
    @ElementCollection Map<String, String> addresses;
}

@Entity
class Company extends Customer {
    String number;
}

@Entity
class Purchase {
    @Id Long id;
    @ManyToMany @JoinTable(name = "watchers") Set<Customer> watchers;
    @ManyToMany @JoinTable(name = "readers") List<Customer> readers;
    @ManyToMany @JoinTable(name = "drivers") @OrderColumn List<Customer> drivers;
    @OneToMany Set<Company> payers;
}

/** What the guide warns of. */
@Entity
class Generated {
    @Id @GeneratedValue Long id;
}

/** Prints the statements by which Hibernate makes the tables of entities, and of their collections of each kind. */
class JoinTables {
    public static void main(String[] arguments) {
        Configuration configuration = new Configuration();
        for (Class<?> entity : List.of(Customer.class, Company.class, Purchase.class, Generated.class)) {
            configuration.addAnnotatedClass(entity);
        }
        for (String statement : configuration.generateSchemaCreationScript(new PostgreSQLDialect())) {
            System.out.println(statement + ";");
        }
    }
}
