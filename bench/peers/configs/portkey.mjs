// Portkey is told with each request, in headers, where it goes; the load of the bench sends none of them.
// Node tells of each request before the gateway sees it: here they are put in, as if the client had sent them.
import { subscribe } from 'node:diagnostics_channel';

const headers = [
    'x-portkey-provider', 'openai',
    'x-portkey-custom-host', 'http://127.0.0.1:@origin_port@/v1',
];

subscribe('http.server.request.start', ({ request, server }) => {
    server.keepAliveTimeout = 3600000;
    request.rawHeaders.push(...headers);
});
