import java.lang.reflect.Member;
import java.util.EnumSet;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.generator.BeforeExecutionGenerator;
import org.hibernate.generator.EventType;
import org.hibernate.generator.EventTypeSets;
import org.hibernate.generator.GeneratorCreationContext;

/** Hibernate makes one for each entity, and calls it from all sessions. */
public final class SnowflakeIdGenerator implements BeforeExecutionGenerator {
    private final SnowflakeIds ids;

    public SnowflakeIdGenerator(SnowflakeId annotation, Member member, GeneratorCreationContext context) {
        ids = new SnowflakeIds(annotation.block());
    }

    @Override
    public Object generate(
            SharedSessionContractImplementor session, Object owner, Object currentValue, EventType eventType) {
        return session.doReturningWork(ids::next);
    }

    @Override
    public EnumSet<EventType> getEventTypes() {
        return EventTypeSets.INSERT_ONLY;
    }
}
