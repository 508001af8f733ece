; Items
(function_item name: (_) @definition.name body: (_) @body) @definition.function @signature
(function_signature_item name: (_) @definition.name) @definition.function @signature
(impl_item
  type: [
    (type_identifier) @definition.name
    (generic_type type: (type_identifier) @definition.name)
    (scoped_type_identifier name: (_) @definition.name)
    (reference_type type: (type_identifier) @definition.name)
  ]
  body: (_) @body) @definition.container @signature
(trait_item name: (_) @definition.name body: (_) @body) @definition.container @signature
(mod_item name: (_) @definition.name body: (_) @body) @definition.container @signature
(macro_definition name: (_) @definition.name . (_)? @body) @definition.container @signature

(struct_item name: (_) @definition.name) @definition
(union_item name: (_) @definition.name) @definition
(enum_item name: (_) @definition.name) @definition
(type_item name: (_) @definition.name) @definition
(associated_type name: (_) @definition.name) @definition
(const_item name: (_) @definition.name value: (_)? @body) @definition
(static_item name: (_) @definition.name value: (_)? @body) @definition
(field_declaration) @definition
(enum_variant) @definition
(where_clause) @signature
(attribute_item) @signature
(inner_attribute_item) @signature

(use_declaration) @import
(extern_crate_declaration) @import
(mod_item !body) @import

; What decides
(if_expression condition: (_) @condition)
(while_expression condition: (_) @condition)
(for_expression body: (_) @body) @condition
(match_expression body: (_) @body) @condition
(match_arm pattern: (_) @condition)
(let_declaration alternative: (_) @body) @condition

; What comes out
(return_expression) @return
(break_expression) @return
(yield_expression) @return
(function_item body: (block (_expression) @return .))
(closure_expression body: (block (_expression) @return .))

(let_declaration) @assignment
(assignment_expression) @assignment
(compound_assignment_expr) @assignment
(field_initializer) @assignment

; Calls: the name, not the whole of a chain
(call_expression function: (identifier) @call @call.name)
(call_expression function: (scoped_identifier name: (_) @call.name) @call)
(call_expression
  function: (scoped_identifier
    path: [
      (identifier) @call.owner
      (self) @call.owner
      (scoped_identifier name: (_) @call.owner)
      (generic_type type: (_) @call.owner)
    ]
    name: (_) @call.name) @call)
(call_expression function: (field_expression field: (_) @call @call.name))
(call_expression function: (field_expression value: (self) @call.owner field: (_) @call @call.name))
(call_expression
  function: (generic_function
    function: [
      (identifier) @call @call.name
      (scoped_identifier name: (_) @call @call.name)
      (field_expression field: (_) @call @call.name)
    ]))
(macro_invocation macro: (_) @call @call.name)

; Tests and what they assert
((attribute_item (attribute [
    (identifier) @_name
    (scoped_identifier name: (_) @_name)])) @test
  (#eq? @_name "test"))
((macro_invocation macro: (identifier) @_name) @test
  (#match? @_name "^(debug_|prop_)?assert"))

(type_identifier) @type

[
  (string_literal)
  (raw_string_literal)
  (char_literal)
  (integer_literal)
  (float_literal)
  (boolean_literal)
] @literal

(line_comment) @comment
(block_comment) @comment
(line_comment doc: (_)) @docstring
(block_comment doc: (_)) @docstring
