; Definitions
(method_declaration name: (_) @definition.name body: (_)? @body) @definition.function @signature
(constructor_declaration name: (_) @definition.name body: (_) @body)
  @definition.function @signature
(compact_constructor_declaration name: (_) @definition.name body: (_) @body)
  @definition.function @signature
(class_declaration name: (_) @definition.name body: (_) @body) @definition.container @signature
(interface_declaration name: (_) @definition.name body: (_) @body)
  @definition.container @signature
(record_declaration name: (_) @definition.name body: (_) @body) @definition.container @signature
(enum_declaration name: (_) @definition.name body: (_) @body) @definition.container @signature
(annotation_type_declaration name: (_) @definition.name body: (_) @body)
  @definition.container @signature
(enum_constant name: (_) @definition.name) @definition
(field_declaration declarator: (variable_declarator name: (_) @definition.name value: (_)? @body))
  @definition
(constant_declaration
  declarator: (variable_declarator name: (_) @definition.name value: (_)? @body)) @definition

(package_declaration) @import
(import_declaration) @import

; What decides
(if_statement condition: (_) @condition)
(while_statement condition: (_) @condition)
(do_statement condition: (_) @condition)
(for_statement body: (_) @body) @condition
(enhanced_for_statement body: (_) @body) @condition
(switch_expression body: (_) @body) @condition
(switch_label) @condition
(ternary_expression condition: (_) @condition)
(catch_clause body: (_) @body) @condition
(try_with_resources_statement body: (_) @body) @condition
(synchronized_statement body: (_) @body) @condition

; What comes out
(return_statement) @return
(throw_statement) @return
(yield_statement) @return
(break_statement) @return
(continue_statement) @return

(local_variable_declaration) @assignment
(assignment_expression) @assignment
(update_expression) @assignment

; Calls: the name, not the whole of a chain
(method_invocation name: (_) @call @call.name)
(method_invocation object: [(identifier) (this)] @call.owner name: (_) @call @call.name)
(object_creation_expression type: [
  (type_identifier) @call @call.name
  (generic_type (type_identifier) @call @call.name)
])
(explicit_constructor_invocation) @call
(method_reference) @call

; Tests and what they assert
((marker_annotation name: (identifier) @_name) @test
  (#match? @_name "Test$"))
((method_invocation name: (identifier) @_name) @test
  (#match? @_name "^(assert|expect|verify|fail)"))
(assert_statement) @test

(type_identifier) @type

[
  (string_literal)
  (character_literal)
  (decimal_integer_literal)
  (hex_integer_literal)
  (decimal_floating_point_literal)
  (true)
  (false)
  (null_literal)
] @literal

(line_comment) @comment
(block_comment) @comment
((block_comment) @docstring (#match? @docstring "^/\\*\\*"))
