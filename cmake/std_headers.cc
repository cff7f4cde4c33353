// Nothing: the precompiled headers of the libraries belong to targets, and a target has a source (options.cmake).
