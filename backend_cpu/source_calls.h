// SPDX-License-Identifier: Apache-2.0
// Places in the program's source, for messages about its mistakes.
#pragma once

#include <workshop_cpu.h>

#include <string>

namespace workshop::cpu {

// Returns the call that the program is in or, if that is unknown, `call` without a place.
SourceCall source_call(const char* call);

// Returns "02_ddp/ddp.cu:41": folder, file and line. Empty if the place is unknown.
std::string place(const SourceCall& call);

// Returns false for calls in files that looks_after_program() has named.
bool of_the_program(const SourceCall& call);

// Ends the program with a message about its mistake.
[[noreturn]] void end_with_mistake(const std::string& message);

}  // namespace workshop::cpu
