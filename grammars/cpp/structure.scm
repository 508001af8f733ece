; What C++ has beyond C.
(function_definition
  declarator: [
    (function_declarator
      declarator: (qualified_identifier
        scope: [(namespace_identifier) (template_type)] @definition.owner
        name: (_) @definition.name))
    (function_declarator
      declarator: [
        (field_identifier)
        (destructor_name)
        (operator_name)
      ] @definition.name)
    (reference_declarator (function_declarator declarator: (_) @definition.name))
  ]
  body: (_) @body) @definition.function @signature
(field_declaration
  declarator: (function_declarator declarator: (_) @definition.name))
  @definition.function @signature
(class_specifier name: (_) @definition.name body: (_) @body) @definition.container @signature
(struct_specifier name: (_) @definition.name body: (_) @body) @definition.container @signature
(union_specifier name: (_) @definition.name body: (_)) @definition
(namespace_definition name: (_) @definition.name body: (_) @body) @definition.container @signature
(concept_definition name: (_) @definition.name) @definition
(alias_declaration name: (_) @definition.name) @definition
(template_declaration parameters: (_) @signature)
(field_initializer_list) @signature

(using_declaration) @import
(namespace_alias_definition) @import

(for_range_loop body: (_) @body) @condition
(catch_clause body: (_) @body) @condition

(throw_statement) @return
(co_return_statement) @return
(co_yield_statement) @return

(call_expression
  function: (qualified_identifier
    scope: (namespace_identifier) @call.owner
    name: [
      (identifier) @call.name
      (template_function name: (_) @call.name)
    ]) @call)
(call_expression function: (qualified_identifier) @call)
(call_expression function: (template_function name: (_) @call @call.name))
(call_expression function: (field_expression argument: (this) @call.owner field: (_) @call.name))
(new_expression type: (type_identifier) @call @call.name)

(static_assert_declaration) @test
(raw_string_literal) @literal
