# Tests of the release build that only `tools/test --long`, `ctest`, or a choice by name runs: the label is system-long.
# Each repeats over one more wire, or with one more setting, what the short form runs over others.
set(BYPASS_LONG_FORM
  # Programs: the short form has vhost, veth and local, and redis, curl, node and handlers over every wire.
  "program_(fork_and_exec|iperf3_tcp|memcached|python_asyncio|python_urllib_and_subprocess|rsync|socat|wrk)_(rc|shm|verbs|shared)"
  "program_(redis_benchmark|redis_from_the_kernel)_(shm|verbs|shared)"
  "program_(apache_event|apache_prefork|curl_http2_tls|haproxy_accepts|haproxy_connects|java|lighttpd|python_ssl|python_threading_server)_(rc|local)"
  "program_systemd_socket_proxyd_(rc|shm)"
  "program_(curl_and_wget|iperf3_udp|udp_echo|writers_whose_peer_has_ended)_(verbs|shared)"
  "program_threads_are_cancelled_(rc|shm|verbs)"
  "program_(apache_event|apache_prefork|curl_http2_tls|haproxy_accepts|haproxy_connects|java|lighttpd|python_ssl)_veth"
  "program_(iperf3_tcp|python_asyncio|rsync|systemd_socket_proxyd|threads_are_cancelled)_veth"
  "program_redis_benchmark_(rc|local)"
  "program_curl_and_wget_(rc|shm)"
  # Families: virtio: is vhost:'s other end.
  "family_owner_killed_(virtio|verbs|shm|rc)"
  "family_orphaned_writer_(virtio|shm|rc)"
  "family_(nginx_listener_for_each_worker|nginx_reload|nginx_worker_killed)_(virtio|verbs)"
  "family_(python_prefork|python_process_pool|python_forking_server|python_daemon|redis_saves_under_load|redis_replica)_virtio"
  "family_(forks_beside_busy_threads|idle_when_the_owner_is_killed|idle_when_the_owner_ends)_virtio"
  # Privileges that are given up.
  "drops_(workers_leave_roots_memory|worker_with_the_port_drops|worker_that_had_the_port_joins)_verbs"
  # A second card whose registers are reached by other means.
  "vm_card_io_ports"
  # Python's and libc's everyday programs under the stub, and the same without a port.
  "preload_everyday_(off|none)")

# Labels the tests of the calling folder that the list names.
function(bypass_label_long_form)
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(name IN LISTS names)
    foreach(pattern IN LISTS BYPASS_LONG_FORM)
      if(name MATCHES "^${pattern}$")
        set_tests_properties(${name} PROPERTIES LABELS system-long)
      endif()
    endforeach()
  endforeach()
endfunction()
