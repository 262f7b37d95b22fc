-- Tokens that only send events.
ALTER TABLE {schema}.api_tokens DROP CONSTRAINT api_tokens_scope_check;
ALTER TABLE {schema}.api_tokens ADD CONSTRAINT api_tokens_scope_check
    CHECK (scope IN ('events', 'read', 'submit', 'admin'));
