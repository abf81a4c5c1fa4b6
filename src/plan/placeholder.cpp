// Placeholder until the module has its first source; deleted then.
