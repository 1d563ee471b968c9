-- Readmitted messages say so among what operators did to them.
ALTER TABLE tenure.message_decision DROP CONSTRAINT message_decision_decision_check;
ALTER TABLE tenure.message_decision ADD CONSTRAINT message_decision_decision_check
    CHECK (decision IN ('replayed', 'discarded', 'readmitted'));
